"""The script of `trade_off`: it draws the stored places of the chosen runs, and says which one the reader points at."""

__all__ = ["TRADE_OFF"]

# A view is stored for every four choices that have runs, under their numbers: "task/trained/tested/across".
TRADE_OFF = """for(const f of document.querySelectorAll('#%(uid)s:not([data-ready])')){f.dataset.ready=1;
const d=JSON.parse(f.querySelector('.tl-data').textContent),all=c=>[...f.querySelectorAll(c)],one=c=>f.querySelector(c),
picks=all('select'),slider=one('input'),out=one('.tl-said'),svg=one('svg'),[L,T,W,H]=d.box,B=T+H,
safe=t=>t.replace(/&/g,'&amp;').replace(/</g,'&lt;').replace(/>/g,'&gt;'),
word=(x,y,a,t)=>'<text x="'+x+'" y="'+y+'" text-anchor="'+a+'">'+safe(t)+'</text>',
plus=(a,b)=>String(+(a+b).toFixed(1)),
view=()=>d.views[picks.map(s=>s.value).join('/')],
fit=()=>{let have=Object.keys(d.views).map(k=>k.split('/'));picks.forEach((s,i)=>{
const ok=[...new Set(have.map(k=>k[i]))].sort((a,b)=>a-b);[...s.options].forEach(o=>{o.disabled=!ok.includes(o.value)});
if(!ok.includes(s.value))s.value=ok[0];have=have.filter(k=>k[i]===s.value)})},
frame=v=>'<path d="'+v.y.map(t=>'M'+L+' '+t[0]+'h'+W).join('')+'" fill="none" stroke="'+d.grey+
'" stroke-opacity=".4" stroke-width=".7"/><path d="M'+L+' '+B+'h'+W+v.x.map(t=>'M'+t[0]+' '+B+'v4').join('')+
'" fill="none" stroke="currentColor"/>'+v.x.map(t=>word(t[0],plus(B,16),'middle',t[1])).join('')+
v.y.map(t=>word(plus(L,-5),plus(t[0],4),'end',t[1])).join('')+
word(plus(L,W/2),plus(B,32),'middle',v.names[0])+word(4,plus(T,-12),'start',v.names[1]),
mark=(i,p)=>{const[c,s]=d.looks[d.runs[i].family];return'<path d="'+s+'" transform="translate('+p[0]+' '+p[1]+
')" fill="'+c+'" fill-opacity=".75" stroke="currentColor" stroke-width=".5"></path>'},
told=(v,k)=>{const r=d.runs[v.runs[k]],n=picks.map(s=>+s.value);
return r.name+': '+r.tested[n[2]]+', '+r.across[n[3]]},
point=k=>{const v=view(),t=told(v,k),p=v.at[k];slider.value=k;out.value=t;slider.setAttribute('aria-valuetext',t);
one('.tl-ring').setAttribute('cx',p[0]);one('.tl-ring').setAttribute('cy',p[1]);
svg.setAttribute('aria-label',d.alt+' '+v.said+' '+t)},
go=()=>{fit();const v=view();one('.tl-frame').innerHTML=frame(v);
one('.tl-marks').innerHTML=v.runs.map((i,k)=>mark(i,v.at[k])).join('');slider.max=v.runs.length-1;
const seen=new Set(v.runs.map(i=>d.runs[i].family));
all('.tl-key').forEach((e,k)=>{e.style.opacity=seen.has(k)?1:.35});point(v.start)},
near=e=>{const b=svg.getBoundingClientRect(),s=d.size[0]/b.width,A=view().at,x=(e.clientX-b.left)*s,
y=(e.clientY-b.top)*s;
point(A.reduce((m,p,k)=>Math.hypot(p[0]-x,p[1]-y)<Math.hypot(A[m][0]-x,A[m][1]-y)?k:m,0))};
picks.forEach(s=>s.addEventListener('change',go));slider.addEventListener('input',()=>point(+slider.value));
svg.addEventListener('pointermove',near);svg.addEventListener('pointerdown',near);
all('.tl-control').forEach(e=>{e.style.display='flex'});go()}"""
