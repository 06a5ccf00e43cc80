// An inline formula that is wider than its line scrolls in a box of its own instead of being cut off.
(() => {
  const fit = () => {
    for (const formula of document.querySelectorAll('article mjx-container:not([display="true"])')) {
      formula.classList.remove('too-wide');
      const line = formula.closest('p, li, dd, td, th, h1, h2, h3') || formula.parentElement;
      if (formula.offsetWidth && formula.offsetWidth > line.clientWidth + 1) formula.classList.add('too-wide');
    }
  };
  window.addEventListener('load', () => {
    const math = window.MathJax && MathJax.startup ? MathJax.startup.promise : Promise.resolve();
    math.then(() => new ResizeObserver(fit).observe(document.querySelector('article') || document.body));
  });
})();

// The theme lets the keyboard into boxes that scroll, and looks again when the window changes; what is unfolded may scroll too.
document.addEventListener('toggle', () => window.dispatchEvent(new Event('resize')), true);
