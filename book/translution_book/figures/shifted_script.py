"""The script of `shifted`: it draws the stored maps of the shift that the slider shows."""

__all__ = ["SHIFTED"]

SHIFTED = """for(const f of document.querySelectorAll('#%(uid)s:not([data-ready])')){f.dataset.ready=1;
const d=JSON.parse(f.querySelector('.tl-data').textContent),all=c=>[...f.querySelectorAll(c)],one=c=>f.querySelector(c),
slider=one('input'),out=one('output'),stage=one('svg'),cards=all('.tl-card'),dots=all('.tl-dot'),mark=one('.tl-mark'),
text=v=>String(+v.toFixed(1)+0),
paint=c=>{if(c==='~')return'fill="'+d.colours[2]+'" fill-opacity=".25"';const n=c.charCodeAt(0)-79;
return'fill="'+d.colours[n<0?1:0]+'" fill-opacity="'+ +(Math.abs(n)/31).toFixed(3)+'"'},
cells=(code,w)=>{const P={};for(let s=0;s<code.length;s+=w){for(let c=0;c<w;){const k=code[s+c];let e=c;
while(e<w&&code[s+e]===k)e++;P[k]=(P[k]||'')+'M'+c+' '+s/w+'h'+(e-c)+'v1h-'+(e-c)+'z';c=e}}
return Object.keys(P).sort().filter(k=>k!=='O').map(k=>'<path d="'+P[k]+'" '+paint(k)+'/>').join('')},
at=(x,y)=>{const[l,t,w,h]=d.axes.box,[a,b]=d.axes.x,c=v=>Math.min(1,Math.max(0,v));
return[text(l+w*c((x-a)/(b-a))),text(t+h*(1-c(y/d.axes.y[1])))]},
go=()=>{const i=+slider.value,words=[],p=d.places[i];
one('.tl-picture').innerHTML=cells(d.pictures[i],d.size[1]);
mark.setAttribute('stroke-opacity',p?1:0);if(p)['x','y'].forEach((a,k)=>mark.setAttribute(a,p[k]));
d.maps.forEach((m,k)=>{const v=d.changes[k][i],t=v.toFixed(3),e=cards[k];
e.querySelector('.tl-shown').innerHTML=cells(m.shown[i],m.size[1]);
e.querySelector('.tl-left').innerHTML=cells(m.left[i],m.size[1]);
e.querySelector('.tl-word').textContent=t;words.push(d.names[k]+' '+t);
e.querySelector('svg[role]').setAttribute('aria-label',d.names[k]+': map and what did not follow, change '+t);
const[x,y]=at(d.xs[i],v);dots[k].setAttribute('cx',x);dots[k].setAttribute('cy',y)});
out.value=d.labels[i];slider.setAttribute('aria-valuetext',d.labels[i]);
stage.setAttribute('aria-label',d.alt+' Shifted by '+d.labels[i]+': '+words.join(', '))};
slider.addEventListener('input',go);
let held=null;
stage.addEventListener('pointerdown',e=>{held=[e.clientX,+slider.value];e.preventDefault();
try{stage.setPointerCapture(e.pointerId)}catch(x){}});
stage.addEventListener('pointermove',e=>{if(!held)return;const n=stage.getBoundingClientRect().width/d.size[1],
x=d.xs[held[1]]+(e.clientX-held[0])/n,i=d.xs.reduce((b,v,k)=>Math.abs(v-x)<Math.abs(d.xs[b]-x)?k:b,0);
if(i!=slider.value){slider.value=i;go()}});
['pointerup','pointercancel'].forEach(w=>stage.addEventListener(w,()=>{held=null}));
f.querySelector('.tl-control').style.display='flex';go()}"""
