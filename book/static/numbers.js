// The search drops numbers. "13.3" or "Theorem 13.2" lists what bears the number, above what the search finds.
(() => {
  const query = (new URLSearchParams(location.search).get('q') || '').toLowerCase();
  const number = query.match(/\b\w+\.\d+\b/);
  const kind = query.match(/[a-z]{3,}/);
  if (!number) return;
  const bears = (name) => name.toLowerCase().match(/[\w.]+\)?$/)[0].replace(')', '') === number[0];
  const all = NUMBERED.filter(([name]) => bears(name));
  const asked = kind ? all.filter(([name]) => name.toLowerCase().startsWith(kind[0].slice(0, 2))) : all;
  const list = document.createElement('ul');
  list.id = 'search-numbers';
  for (const [name, address, where] of asked.length ? asked : all) {
    const entry = list.appendChild(document.createElement('li'));
    const link = entry.appendChild(document.createElement('a'));
    link.href = address;
    link.textContent = name;
    entry.append(`: ${where}`);
  }
  if (all.length) document.getElementById('search-results').before(list);
})();
