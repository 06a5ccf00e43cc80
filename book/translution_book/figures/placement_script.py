"""The script of `placement`: it moves the picture and recomputes what it covers and needs."""

__all__ = ["PLACEMENT"]

PLACEMENT = """for(const f of document.querySelectorAll('#%(uid)s:not([data-ready])')){f.dataset.ready=1;
const d=JSON.parse(f.querySelector('.tl-data').textContent),all=c=>[...f.querySelectorAll(c)],one=c=>f.querySelector(c),
put=all('input'),out=all('output'),stage=one('svg'),hit=all('.tl-hit rect'),met=all('.tl-met rect'),g=d.grid,
dots=all('.tl-dots circle'),bars=all('.tl-bar'),rate=all('.tl-rate'),names=Object.keys(d.rates),
range=(a,b)=>{const r=[];for(let v=a;v<b;v++)r.push(v);return r},known=new Set(d.known),line=range(1-g,g),
go=()=>{const at=put.map(p=>+p.value),touch=at.map((c,a)=>range(Math.floor((c+d.box[a][0])/d.patch),
Math.floor((c+d.box[a][1])/d.patch)+1)),
meet=(keys)=>touch.map((qs,a)=>new Set(qs.flatMap(q=>keys(a).map(k=>q-k)))),now=meet(()=>range(0,g)),
ink=meet(a=>touch[a]),
share=touch.map(qs=>{const w=qs.flatMap(q=>range(0,g).map(k=>known.has(q-k)));return w.filter(v=>v).length/w.length}),
phase=at.map(c=>((c-Math.floor(d.room/2))%%d.patch+d.patch)%%d.patch),edge=Math.min(...at,...at.map(c=>d.room-c));
one('.tl-picture').setAttribute('transform','translate('+at[1]+' '+at[0]+')');
hit.forEach((r,k)=>r.setAttribute('fill-opacity',
touch[0].includes(Math.floor(k/g))&&touch[1].includes(k%%g)?.25:0));
met.forEach((r,k)=>{const p=[line[Math.floor(k/(2*g-1))],line[k%%(2*g-1)]],old=p.every(v=>known.has(v)),
on=p.every((v,a)=>now[a].has(v));r.setAttribute('fill',d.fills[on&&!old?'new':'trained']);
r.setAttribute('fill-opacity',on?(old?.75:.95):(old?.14:0));
dots[k].setAttribute('fill-opacity',p.every((v,a)=>ink[a].has(v))?1:0)});
const said='Corner ('+at.join(', ')+'), phase ('+phase.join(', ')+'), '+edge+' pixels from the edge; the ink touches '+
touch[0].length+' by '+touch[1].length+' patches; '+Math.round(100*(1-share[0]*share[1]))+
' %% of the pairs of its queries have an offset that no centred picture meets.';
one('.tl-said').textContent=said;stage.setAttribute('aria-label',d.alt+' '+said);
const cell=at.map(c=>Math.floor(c*d.cells/(d.room+1)));
names.forEach((n,k)=>{const v=d.rates[n][cell[0]*d.cells+cell[1]];bars[k].style.width=100*(v||0)+'%%';
rate[k].textContent=v===null?'–':Math.round(100*v)+' %%'});
put.forEach((p,a)=>{out[a].value=at[a];p.setAttribute('aria-valuetext',at[a])})};
put.forEach(p=>p.addEventListener('input',go));
let held=null;
stage.addEventListener('pointerdown',e=>{held=[e.clientY,e.clientX,...put.map(p=>+p.value)];e.preventDefault();
try{stage.setPointerCapture(e.pointerId)}catch(x){}});
stage.addEventListener('pointermove',e=>{if(!held)return;const n=d.canvas/stage.getBoundingClientRect().width;
[e.clientY,e.clientX].forEach((v,a)=>{put[a].value=Math.round(held[a+2]+(v-held[a])*n)});go()});
['pointerup','pointercancel'].forEach(w=>stage.addEventListener(w,()=>{held=null}));
all('.tl-control').forEach(c=>{c.style.display='flex'});go()}"""
