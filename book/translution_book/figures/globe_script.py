"""The script of `globe`: parallel transport on the sphere in the page itself, in double precision."""

__all__ = ["GLOBE"]

# State: the loop's number, its corners' places (degrees), the corner that the sliders move, and the view's place.
# `walk` gives the stations of a loop and the vector at each; `carry` is transport along a short great circle.
GLOBE = """for(const f of document.querySelectorAll('#%(uid)s:not([data-ready])')){f.dataset.ready=1;
const d=JSON.parse(f.querySelector('.tl-data').textContent),all=c=>[...f.querySelectorAll(c)],one=c=>f.querySelector(c),
[step,colat,long,turn,tilt]=all('input'),[loops,corners]=['loop','corner'].map(s=>one('select[name='+s+']')),
svg=one('.tl-globe'),values=all('.tl-value'),rad=Math.PI/180,
dot=(a,b)=>a[0]*b[0]+a[1]*b[1]+a[2]*b[2],
cross=(a,b)=>[a[1]*b[2]-a[2]*b[1],a[2]*b[0]-a[0]*b[2],a[0]*b[1]-a[1]*b[0]],
mix=(s,a,t,b)=>a.map((v,k)=>s*v+t*b[k]),size=a=>Math.sqrt(dot(a,a)),
times=(s,a)=>a.map(v=>s*v),sized=a=>times(1/Math.max(size(a),1e-12),a),
frame=([a,b])=>{const s=Math.sin(a*rad),c=Math.cos(a*rad),t=Math.sin(b*rad),u=Math.cos(b*rad);
return[[c*u,c*t,-s],[-t,u,0],[s*u,s*t,c]]},
unit=p=>frame(p)[2],
carry=(v,a,b)=>mix(1,v,-dot(b,v)/Math.max(1+dot(a,b),1e-12),mix(1,a,1,b)),
stations=L=>{if(L.length<2)return Array.from({length:d.circle+1},(_,k)=>unit([L[0][0],L[0][1]+360*k/d.circle]));
const C=L.map(unit),P=C.flatMap((a,e)=>{const b=C[(e+1)%%C.length],w=mix(1,b,-dot(a,b),a),
t=Math.atan2(size(w),dot(a,b))/d.edge;
return Array.from({length:d.edge},(_,k)=>mix(Math.cos(t*k),a,Math.sin(t*k),sized(w)))});return[...P,C[0]]},
walk=L=>{const P=stations(L),[south,,up]=frame(L[0]),ahead=sized(L.length<2?south:mix(1,P[1],-dot(P[1],up),up)),
V=[mix(Math.cos(d.bearing*rad),ahead,Math.sin(d.bearing*rad),cross(up,ahead))];
for(let k=0;k+1<P.length;k++){let v=V[k];
const h=360/d.circle/d.fine,S=L.length>1?[P[k],P[k+1]]:
Array.from({length:d.fine+1},(_,n)=>unit([L[0][0],L[0][1]+(k*d.fine+n)*h]));
for(let n=0;n+1<S.length;n++)v=carry(v,S[n],S[n+1]);V.push(v)}
return[P,V]},
area=L=>{if(L.length<2)return 2*Math.PI*(1-Math.cos(L[0][0]*rad));const[a,...O]=L.map(unit);let s=0;
for(let k=0;k+1<O.length;k++){const b=O[k],c=O[k+1];s+=2*Math.atan2(dot(a,cross(b,c)),1+dot(a,b)+dot(b,c)+dot(c,a))}
return s},
turned=(L,V)=>{const v=V[0],w=V[V.length-1],a=Math.atan2(dot(w,cross(unit(L[0]),v)),dot(w,v));
return a+2*Math.PI*Math.round((area(L)-a)/2/Math.PI)},
inner=L=>{const C=L.map(unit),s=area(L)<0?-1:1;return C.map((b,k)=>{const a=C[(k||C.length)-1],c=C[(k+1)%%C.length],
i=mix(dot(a,b),b,-1,a),o=mix(1,c,-dot(c,b),b);return Math.PI-s*Math.atan2(dot(b,cross(i,o)),dot(i,o))})},
facets=L=>{const m=d.mesh,F=[];
if(L.length<2){const h=L[0][0]/m;for(let r=0;r<m;r++)for(let x=0;x<360;x+=10)
F.push([[h*r,x],[h*r,x+10],[h*r+h,x+10],[h*r+h,x]].map(unit));return F}
const[a,...O]=L.map(unit);
for(let k=0;k+1<O.length;k++){const at=(i,j)=>sized(mix(1,times(m-i-j,a),1,mix(i,O[k],j,O[k+1])));
for(let i=0;i<m;i++)for(let j=0;j<m-i;j++){F.push([at(i,j),at(i+1,j),at(i,j+1)]);
if(i+j<m-1)F.push([at(i+1,j),at(i+1,j+1),at(i,j+1)])}}
return F},
range=(a,b,s)=>Array.from({length:Math.floor((b-a)/s)+1},(_,k)=>a+k*s),
GRID=[...range(0,150,30).map(l=>range(0,360,7.5).map(t=>unit([t,l]))),
...range(30,150,30).map(c=>range(0,360,7.5).map(t=>unit([c,t])))],
state=d.loops.map(l=>l.places.map(p=>p.slice()));
let now=0,view=d.view.slice(),pick=Math.min(d.corner,state[0].length-1),last=0,held=-2,grip=[0,0],playing=0;
const L=()=>state[now],
text=v=>String(+v.toFixed(1)+0),
at=p=>text(d.size/2+d.radius*p[0])+' '+text(d.size/2-d.radius*p[1]),
split=C=>{const D=['',''];let was=-1;for(let k=0;k+1<C.length;k++){const a=C[k],b=C[k+1];
let S=[[a,b,a[2]+b[2]<0?1:0]];
if(a[2]<0!==b[2]<0){let m=mix(1,a,a[2]/(a[2]-b[2]),mix(1,b,-1,a));m=times(1/Math.max(Math.hypot(m[0],m[1]),1e-9),m);
S=[[a,m,a[2]<0?1:0],[m,b,b[2]<0?1:0]]}
for(const[p,q,s]of S){D[s]+=(s===was?'':'M'+at(p)+'L')+at(q)+' ';was=s}}
return D.map(t=>t.trim())},
arrow=(p,v)=>{const u=times(d.arrow,v),e=times(d.arrow,cross(p,v)),t=mix(1,p,1,u),
[g,h]=[.15,-.15].map(s=>mix(1,mix(1,p,.74,u),s,e));return'M'+at(p)+'L'+at(t)+'M'+at(g)+'L'+at(t)+'L'+at(h)},
put=(c,v)=>one('.tl-'+c).setAttribute('d',v),
degrees=v=>{const t=(v/rad).toFixed(1);return(t==='-0.0'?'0.0':t).replace('-','\\u2212')+'\\u00b0'},
whole=v=>(Math.round(v)+'\\u00b0').replace('-','\\u2212'),
tell=(s,v,t)=>{s.value=v;s.closest('.tl-control').querySelector('output').value=t;s.setAttribute('aria-valuetext',t)},
allowed=()=>{const P=L();if(P.length<2)return P[0][0]>=5&&P[0][0]<=175;const C=P.map(unit);
return C.every((a,i)=>C.every((b,j)=>j<=i||Math.abs(dot(a,b))<Math.cos(d.apart*rad)))},
move=(k,to)=>{const from=L()[k].slice();if(L().length<2)to[0]=Math.min(175,Math.max(5,to[0]));
for(let n=90;n>0;n--){L()[k]=from.map((v,a)=>Math.round(v+(to[a]-v)*n/90));if(allowed())return go()}
L()[k]=from;go()},
print=(P,V)=>{const l=L(),A=area(l),s=A<0?-1:1,T=degrees(turned(l,V)),a=l.length<2?[]:inner(l),
area4=A.toFixed(4).replace('-','\\u2212')+' = '+degrees(A),
texts=[T,area4,a.length?a.map(degrees).join(', '):'no corners',
a.length?degrees(s*(a.reduce((p,q)=>p+q,0)-Math.PI*(a.length-2))):'\\u2013'],name=d.loops[now].name;
values.forEach((e,k)=>{e.textContent=texts[k]});
svg.setAttribute('aria-label',d.alt+' '+name[0].toUpperCase()+name.slice(1)+': turned by '+T+', area '+area4+'.')},
handles=seen=>{const C=L().map(p=>seen(unit(p))),m=[0,1].map(a=>C.reduce((s,p)=>s+p[a],0)/C.length);
all('.tl-corner').forEach((g,k)=>{const p=C[k],w=[p[0]-m[0],p[1]-m[1]+(C.length>1?1e-6:-1)],r=Math.hypot(...w),
t=g.querySelector('text');
g.setAttribute('transform','translate('+at(p)+')');g.setAttribute('opacity',p[2]<0?.4:1);
g.style.pointerEvents=p[2]<0?'none':'';
t.setAttribute('x',text(15*w[0]/r));t.setAttribute('y',text(-15*w[1]/r))})},
go=()=>{const[south,east,up]=frame(view),seen=p=>[dot(p,east),-dot(p,south),dot(p,up)],[P,V]=walk(L()),
X=P.map(seen),Y=V.map(seen),k=Math.min(+step.value,P.length-1),D=GRID.map(c=>split(c.map(seen))),S=split(X),G=['',''];
last=P.length-1;step.max=last;tell(step,k,k+'/'+last);
tell(colat,Math.round(L()[pick][0]),whole(L()[pick][0]));
tell(long,Math.round(L()[pick][1])+180,whole(L()[pick][1]));tell(turn,Math.round(view[1])+180,whole(view[1]));
tell(tilt,180-Math.round(view[0]),whole(90-view[0]));
[0,1].forEach(s=>{put('grid'+s,D.map(p=>p[s]).join(''));put('loop'+s,S[s])});
put('fill',facets(L()).map(F=>F.map(seen)).filter(F=>F.some(p=>p[2]>0)).map(F=>'M'+F.map(p=>
at(p[2]<0?times(1/Math.max(Math.hypot(p[0],p[1]),1e-9),p):p)).join('L')+'z').join(''));
for(let n=d.every;n<k;n+=d.every)G[X[n][2]<0?1:0]+=arrow(X[n],Y[n]);
put('ghosts0',G[0]);put('ghosts1',G[1]);
[['start',0],['now',k]].forEach(([c,n])=>{put(c,arrow(X[n],Y[n]));one('.tl-'+c).setAttribute('stroke-opacity',X[n][2]<0?.4:1)});
const a=turned(L(),V),b=Math.atan2(Math.sin(a),Math.cos(a)),e=cross(X[0],Y[0]);
put('turned',k<last?'':'M'+range(0,24,1).map(n=>at(mix(1,X[0],d.arc,mix(Math.cos(b*n/24),Y[0],Math.sin(b*n/24),e)))).join('L'));
handles(seen);print(P,V)},
choose=()=>{const l=d.loops[now],g=all('.tl-corner');pick=Math.min(d.corner,l.places.length-1);
const box=g[0].parentNode,plain=g[0];g.slice(1).forEach(e=>e.remove());
l.names.forEach((n,k)=>{const e=k?plain.cloneNode(true):plain;e.querySelector('text').textContent=n;
if(k)box.append(e)});
corners.textContent='';l.names.forEach((n,k)=>corners.append(new Option(n,k,k===pick,k===pick)));
corners.parentNode.style.display=l.names.length>1?'':'none';
step.max=stations(L()).length-1;step.value=step.max;go()},
point=e=>{const r=svg.getBoundingClientRect(),s=d.size/r.width/d.radius;
return[(e.clientX-r.left-r.width/2)*s,-(e.clientY-r.top-r.height/2)*s]},
drag=e=>{const[x,y]=point(e);
if(held<0){const[a,b]=grip;grip=[x,y];const l=view[1]-(x-a)/rad;
view=[Math.min(180,Math.max(0,view[0]+(y-b)/rad)),l>180?l-360:l<-180?l+360:l];return go()}
const r=Math.hypot(x,y),q=r>1?[x/r,y/r,0]:[x,y,Math.sqrt(1-r*r)],[south,east,up]=frame(view),
p=mix(1,mix(q[0],east,-q[1],south),q[2],up);
move(held,[Math.acos(Math.min(1,Math.max(-1,p[2])))/rad,Math.atan2(p[1],p[0])/rad])};
svg.addEventListener('pointerdown',e=>{const g=e.target.closest('.tl-corner');held=g?all('.tl-corner').indexOf(g):-1;
if(held>=0){pick=held;corners.value=pick}
grip=point(e);e.preventDefault();try{svg.setPointerCapture(e.pointerId)}catch(x){}});
svg.addEventListener('pointermove',e=>{if(held>-2)drag(e)});
svg.addEventListener('touchstart',e=>{if(e.target.closest('.tl-corner'))e.preventDefault()},{passive:false});
['pointerup','pointercancel'].forEach(w=>svg.addEventListener(w,()=>{held=-2}));
step.addEventListener('input',()=>{playing++;go()});
[colat,long].forEach(s=>s.addEventListener('input',()=>move(pick,[+colat.value,long.value-180])));
[turn,tilt].forEach(s=>s.addEventListener('input',()=>{view=[180-tilt.value,turn.value-180];go()}));
if(loops)loops.addEventListener('change',()=>{playing++;now=+loops.value;choose()});
corners.addEventListener('change',()=>{pick=+corners.value;go()});
one('.tl-play').addEventListener('click',()=>{const run=++playing;let k=0;
const tick=()=>{if(run!==playing)return;step.value=k;go();if(k++<last)setTimeout(tick,45)};tick()});
all('.tl-control').forEach(e=>{e.style.display='flex'});
corners.parentNode.style.display=L().length>1?'':'none';go()}"""
