"""The script of `draw_and_move`: softmax attention in the page itself, in double precision."""

__all__ = ["DRAW"]

# Relative encodings read their matrices at h.ids[offset]; a masked pair has the id −1. State: k, the kind of ink in
# every cell before the move; t, the move (rows, columns); the query is the slider's value.
DRAW = """for(const f of document.querySelectorAll('#%(uid)s:not([data-ready])')){f.dataset.ready=1;
const d=JSON.parse(f.querySelector('.tl-data').textContent),[H,W]=d.shape,n=H*W,
all=(c,e=f)=>[...e.querySelectorAll(c)],one=(c,e=f)=>e.querySelector(c),
[down,right,at]=all('input'),
[objects,grounds,depths]=['object','background','layers'].map(s=>one('select[name='+s+']')),
said=one('.tl-said'),stage=one('.tl-draw'),ink=all('.tl-i rect'),ghost=all('.tl-g rect'),
cards=all('.tl-card').map((e,k)=>({name:d.names[k],heads:d.encodings[k],svg:one('svg',e),word:one('.tl-word',e),
A:one('.tl-a',e),P:all('.tl-p rect',e),Y:all('.tl-y rect',e),D:all('.tl-d rect',e)})),
inside=(y,x)=>y>=0&&x>=0&&y<H&&x<W,cell=(y,x)=>inside(y,x)?y*W+x:-1,
from=(p,t,s)=>cell((p/W|0)-s*t[0],p%%W-s*t[1]),peak=a=>a.reduce((m,v)=>Math.max(m,Math.abs(v)),0);
let k=d.objects[d.object].slice(),t=d.move.slice();
const attend=(heads,X)=>{const E=heads[0].N[0][0].length,P=X.map(()=>Array(n).fill(0)),Y=X.map(()=>Array(E).fill(0));
for(const h of heads){const Z=X.map((x,i)=>[...x.map((v,c)=>v+(h.e?h.e[i][c]:0)),1]);
for(let i=0;i<n;i++){
const id=Z.map((z,j)=>h.ids[((i/W|0)-(j/W|0)+H-1)*(2*W-1)+i%%W-j%%W+W-1]),
a=Z.map((z,j)=>id[j]<0?-Infinity:Z[i].reduce((s,u,b)=>s+u*z.reduce((q,v,c)=>q+h.M[id[j]][b][c]*v,0),0)),
m=Math.max(...a),w=a.map(v=>Math.exp(v-m)),sum=w.reduce((s,v)=>s+v,0);
w.forEach((v,j)=>{if(!v)return;v/=sum;P[i][j]+=v/heads.length;
Z[j].forEach((z,c)=>h.N[id[j]][c].forEach((g,e)=>{Y[i][e]+=v*z*g}))})}}
return[P,Y]},
features=kinds=>kinds.map(v=>v?d.inks[v-1]:d.grounds[grounds?+grounds.value:d.ground]),
moved=(kinds,t)=>kinds.map((v,p)=>{const o=from(p,t,1);return o<0?0:kinds[o]}),
run=(heads,kinds)=>{let X=features(kinds),P;for(let l=d.depths[depths?+depths.value:0];l>0;l--)[P,X]=attend(heads,X);
return[P,X]},
room=()=>[0,1].map(a=>{const r=[...k.keys()].filter(p=>k[p]).map(p=>a?p%%W:p/W|0);
return r.length?[-Math.min(...r),(a?W:H)-1-Math.max(...r)]:[0,0]}),
paint=(rects,values,high,base)=>rects.forEach((r,p)=>{const v=values[p];
r.setAttribute('fill',v===null?'url(#%(uid)sm)':v<0?d.colours[1]:d.colours[0]);
r.setAttribute('fill-opacity',v===null?1:high?Math.min(1,Math.abs(v)/high):0)}),
put=(m,r)=>['x','y'].forEach(a=>m.setAttribute(a,r.getAttribute(a))),
signed=v=>String(v).replace('-','\\u2212'),
text=v=>v<5e-5?'below 0.0001':v.toFixed(4),
judge=(Y,Z)=>{const D=Y.map((y,p)=>{const o=from(p,t,1);return o<0?null:y.map((v,e)=>v-Z[o][e])});
return[D,D.reduce((m,v)=>v?Math.max(m,peak(v)):m,0)]},
go=()=>{const R=room();t=t.map((v,a)=>Math.min(R[a][1],Math.max(R[a][0],v)));
[down,right].forEach((s,a)=>{s.min=R[a][0]+(a?W:H)-1;s.max=R[a][1]+(a?W:H)-1;s.value=t[a]+(a?W:H)-1;
const v=signed(t[a]);s.closest('.tl-control').querySelector('output').value=v;s.setAttribute('aria-valuetext',v)});
const now=moved(k,t),i=+at.value,place=(i/W|0)+', '+i%%W,still=!t[0]&&!t[1],words=[[],[]];
at.closest('.tl-control').querySelector('output').value=place;at.setAttribute('aria-valuetext',place);
now.forEach((v,p)=>{ink[p].setAttribute('fill',d.tints[v]);ink[p].setAttribute('fill-opacity',v?1:0)});
ghost.forEach((r,p)=>r.setAttribute('stroke-opacity',!still&&k[p]?1:0));
for(const c of cards){const[P,Y]=run(c.heads,now),[D,e]=judge(Y,run(c.heads,k)[1]),high=peak(Y.flat()),
ok=e<=1e-9*high,word=still?'move the object':(ok?'\\u2713 follows':'\\u2717 fails')+', largest difference '+text(e);
if(!still)words[ok?0:1].push(c.name);
paint(c.P,P[i],Math.max(...P[i]));paint(c.Y,Y.map(y=>y[d.channel]),peak(Y.map(y=>y[d.channel])));
paint(c.D,D.map(v=>v&&v[d.channel]),peak(Y.map(y=>y[d.channel])));put(c.A,c.P[i]);c.word.textContent=word;
c.svg.setAttribute('aria-label',c.name+': attention of query '+place+', output, and difference. '+word)}
put(one('.tl-a',stage),ink[i]);
said.textContent=still?'not moved':[['follows: ',words[0]],['fails: ',words[1]]].filter(w=>w[1].length)
.map(w=>w[0]+w[1].join(', ')).join('\\n');
stage.setAttribute('aria-label',d.alt+' Moved by '+t.map(signed).join(', ')+' (rows, columns); query '+place+'.')},
to=(y,x)=>{const R=room(),u=[y,x].map((v,a)=>Math.min(R[a][1],Math.max(R[a][0],v))),
q=from(+at.value,[u[0]-t[0],u[1]-t[1]],-1);t=u;if(q>=0)at.value=q;go()},
hit=(rects,e)=>rects.indexOf(document.elementFromPoint(e.clientX,e.clientY)),
draw=(p,v)=>{if(from(p,t,1)<0){k=moved(k,t);t=[0,0]}k[from(p,t,1)]=v;go()};
let pen=-1;
stage.addEventListener('pointerdown',e=>{const p=hit(ink,e);if(p<0)return;e.preventDefault();
pen=(moved(k,t)[p]+1)%%d.tints.length;draw(p,pen)});
stage.addEventListener('pointermove',e=>{const p=hit(ink,e);
if(pen>=0&&e.buttons&&p>=0&&moved(k,t)[p]!==pen)draw(p,pen)});
document.addEventListener('pointerup',()=>{pen=-1});
for(const c of cards)['pointerdown','pointermove'].forEach(w=>c.svg.addEventListener(w,e=>{
const i=Math.max(hit(c.P,e),hit(c.Y,e),hit(c.D,e));if(i>=0&&i!=at.value){at.value=i;go()}}));
for(const s of[down,right]){s.addEventListener('input',()=>to(down.value-H+1,right.value-W+1));
s.addEventListener('keydown',e=>{const v={ArrowUp:[-1,0],ArrowDown:[1,0],ArrowLeft:[0,-1],ArrowRight:[0,1]}[e.key];
if(v){e.preventDefault();to(t[0]+v[0],t[1]+v[1])}})}
at.addEventListener('input',go);
at.addEventListener('keydown',e=>{const v={ArrowUp:-W,ArrowDown:W}[e.key];
if(v){e.preventDefault();const i=+at.value+v;if(i>=0&&i<n){at.value=i;go()}}});
one('.tl-pen').addEventListener('click',()=>{const i=+at.value;draw(i,(moved(k,t)[i]+1)%%d.tints.length)});
one('.tl-clear').addEventListener('click',()=>{k=k.map(()=>0);t=[0,0];go()});
objects.addEventListener('change',()=>{k=d.objects[objects.value].slice();go()});
for(const s of[grounds,depths])if(s)s.addEventListener('change',go);
all('.tl-control').forEach(e=>{e.style.display='flex'});go()}"""
