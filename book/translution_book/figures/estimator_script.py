"""The script of `estimator`: a fixed sequence of random numbers, and estimates from it, in the page itself."""

__all__ = ["ESTIMATOR"]

# `uniform(k)` mixes a 32-bit counter; trial r reads 2·most numbers from r·2·most on, two for each draw.
ESTIMATOR = """for(const f of document.querySelectorAll('#%(uid)s:not([data-ready])')){f.dataset.ready=1;
const d=JSON.parse(f.querySelector('.tl-data').textContent),all=c=>[...f.querySelectorAll(c)],one=c=>f.querySelector(c),
[count,nx,ny,turn]=all('input'),equal=one('select'),values=all('.tl-value'),[stage,side]=all('svg'),
B=d.boxes,[low,high]=B[0].x,
uniform=k=>{const a=Math.imul(k+1,0x6D2B79F5);let t=Math.imul(a^a>>>15,a|1);t^=t+Math.imul(t^t>>>7,t|61);
return((t^t>>>14)>>>0)/4294967296},
text=v=>String(+v.toFixed(1)+0),clip=v=>Math.min(1,Math.max(0,v)),
at=(b,x,y)=>{const g=v=>b.log?Math.log10(Math.max(v,1e-300)):v,[l,t,w,h]=b.box;
return[text(l+w*clip((x-b.x[0])/(b.x[1]-b.x[0]))),text(t+h*(1-clip((g(y)-g(b.y[0]))/(g(b.y[1])-g(b.y[0])))))]},
number=v=>{const a=Math.abs(v),n=a<10?3:a<100?1:0,t=v.toFixed(n);return(+t?t:(0).toFixed(n)).replace('-','\\u2212')},
squares=(x,y,a)=>{const p=2*x*y*Math.cos(a*Math.PI/180);return[Math.max(x*x+y*y-p,0),Math.max(x*x+y*y+p,0)]},
spread=(c,u,v)=>[Math.sqrt(2/c[0])*Math.sinh(u/2),Math.sqrt(Math.expm1(v)/c[1])],
estimates=(c,u,v)=>{const T=[],P=[],m=Math.max(...c),r=Math.sqrt(u),s=Math.sqrt(v);
for(let i=0;i<d.trials;i++){let t=0,p=0;const k=seed*d.draws+2*d.most*i;
for(let j=0;j<m;j++){const g=Math.sqrt(-2*Math.log(1-uniform(k+2*j))),a=2*Math.PI*uniform(k+2*j+1);
if(j<c[0])t+=Math.cos(r*g*Math.cos(a));if(j<c[1])p+=Math.exp(s*g*Math.sin(a))}
T.push(Math.exp(u/2)*t/c[0]);P.push(Math.exp(-v/2)*p/c[1])}
return[T,P]},
bars=(b,R)=>{const n=Array(d.bins).fill(0),w=(high-low)/d.bins;
R.forEach(q=>{const k=Math.floor((q-low)/(high-low)*d.bins);if(k>=0&&k<d.bins)n[k]++});const top=Math.max(1,...n);
return n.map((q,k)=>{if(!q)return'';const[x,y]=at(b,low+k*w,0),[X,Y]=at(b,low+(k+1)*w,q/top);
return'M'+x+' '+y+'V'+Y+'H'+X+'V'+y+'z'}).join('')},
tell=(s,t)=>{s.closest('.tl-control').querySelector('output').value=t;s.setAttribute('aria-valuetext',t)},
put=(c,a,v)=>one('.tl-'+c).setAttribute(a,v);
let seed=0;
const go=()=>{const m=d.counts[+count.value],x=d.norms[+nx.value],y=d.norms[+ny.value],a=d.angles[+turn.value],
c=[m,equal.value==='draws'?m:2*m],[u,v]=squares(x,y,a),R=estimates(c,u,v),E=spread(c,u,v),words=[],
C=d.angles.map(b=>spread(c,...squares(x,y,b)));
tell(count,String(m));tell(nx,x.toFixed(1));tell(ny,y.toFixed(1));tell(turn,a+'\\u00b0');
[0,1].forEach(k=>{const r=R[k],n=r.length,mean=number(r.reduce((s,q)=>s+q,0)/n),
sd=Math.sqrt(r.reduce((s,q)=>s+(q-1)*(q-1),0)/n),
row=[mean,number(sd),number(E[k]),Math.round(100*r.filter(q=>q<0).length/n)+'%%'],
l=r.filter(q=>q<low).length,h=r.filter(q=>q>=high).length,[p,q]=at(B[k],1-E[k],0),[P,Q]=at(B[k],1+E[k],1);
row.forEach((t,i)=>{values[2*i+k].textContent=t});
words.push(d.names[k]+' features: mean '+mean+', standard deviation '+row[1]+', exactly '+row[2]);
put('band'+k,'d','M'+p+' '+q+'V'+Q+'H'+P+'V'+q+'z');put('bars'+k,'d',bars(B[k],r));
one('.tl-off'+k).textContent=l||h?'off the axis: '+l+' left, '+h+' right':'';
put('curve'+k,'d','M'+d.angles.map((b,i)=>at(B[2],b,C[i][k]).join(' ')).join('L'));
const[X,Y]=at(B[2],a,sd);put('dot'+k,'cx',X);put('dot'+k,'cy',Y)});
const[X,Y]=at(B[2],a,B[2].y[0]);put('mark','d','M'+X+' '+Y+'v'+-B[2].box[3]);
stage.setAttribute('aria-label',d.alt+' m = '+m+', norms '+x.toFixed(1)+' and '+y.toFixed(1)+', angle '+a+
'\\u00b0: '+words.join('; '))};
[count,nx,ny,turn].forEach(s=>s.addEventListener('input',go));equal.addEventListener('change',go);
one('.tl-again').addEventListener('click',()=>{seed=(seed+1)%%4000;go()});
all('.tl-control').forEach(e=>{e.style.display='flex'});go()}"""
