"""The script of `filter_table`: rows are hidden and shown, bars redrawn, in the page itself."""

__all__ = ["FILTER_TABLE"]

# keys[i][k] is the value of filter i in row k; by, the filters of the bars and of their parts. A row whose id stands in
# the address is shown whatever was chosen. Paper has no scroll box: it is taken away before printing.
FILTER_TABLE = """for(const f of document.querySelectorAll('#%(uid)s:not([data-ready])')){f.dataset.ready=1;
const d=JSON.parse(f.querySelector('.tl-data').textContent),all=c=>[...f.querySelectorAll(c)],one=c=>f.querySelector(c),
rows=all('tbody tr'),picks=all('select'),find=one('input'),said=one('output'),svg=one('svg'),box=one('.tl-scroll'),
bars=all('svg > rect'),sums=all('.tl-n'),texts=rows.map(r=>r.textContent.toLowerCase()),
tell=n=>d.alt+' '+n.map((c,g)=>c.some(v=>v)?d.groups[g]+': '+c.map((v,p)=>v?v+' '+d.parts[p]:'').filter(t=>t).join(', ')
:'').filter(t=>t).join('; ')+'.',
draw=n=>n.forEach((c,g)=>{const sum=c.reduce((a,v)=>a+v,0);let x=d.left;sums[g].textContent=sum;
c.forEach((v,p)=>{const w=sum?d.width*v/sum:0,e=bars[g*c.length+p];e.setAttribute('x',x.toFixed(1));
e.setAttribute('width',w.toFixed(1));x+=w})}),
go=()=>{const words=find.value.toLowerCase().split(/\\s+/).filter(w=>w),n=d.groups.map(()=>d.parts.map(()=>0));
let shown=0;
rows.forEach((r,k)=>{const ok=picks.every((s,i)=>s.value===''||d.keys[i][k]===+s.value)&&
words.every(w=>texts[k].includes(w));r.hidden=!ok;if(ok){shown++;n[d.keys[d.by[0]][k]][d.keys[d.by[1]][k]]++}});
said.value=shown+' of '+d.total+' rows';draw(n);svg.setAttribute('aria-label',tell(n));box.scrollTop=0},
clear=()=>{picks.forEach(s=>s.value='');find.value='';go()},
room=on=>{box.style.maxHeight=on?'75vh':'';box.style.overflowY=on?'auto':''},
seek=()=>{const id=decodeURIComponent(location.hash.slice(1)),r=rows.find(r=>r.id===id);
if(r){if(r.hidden)clear();r.scrollIntoView({block:'center'})}};
picks.forEach(s=>s.addEventListener('change',go));find.addEventListener('input',go);
one('button').addEventListener('click',()=>{clear();find.focus()});
addEventListener('hashchange',seek);addEventListener('beforeprint',()=>room(0));addEventListener('afterprint',()=>room(1));
one('.tl-control').style.display='flex';room(1);go();seek()}"""
