// The sections in order of the video, one button each: a click jumps there. One of them is in the tab order,
// the arrow keys go to the others.

function createStrip(strip, jump) {
  let cells = [], made = '', hidden = 0, running = 0, playing = -1;

  function build(next) {
    made = `${next.job} ${next.cells.length}`;
    running = 0;
    playing = -1;
    strip.replaceChildren();
    cells = next.cells.map((cell, index) => {
      const button = document.createElement('button');
      button.type = 'button';
      button.className = 'lt-cell';
      button.tabIndex = index ? -1 : 0;
      button.dataset.section = cell.number;
      const picture = document.createElement('img');
      picture.alt = '';
      picture.hidden = true;
      const label = document.createElement('span');
      label.className = 'lt-cell-time';
      label.textContent = cell.label;
      const state = document.createElement('span');
      state.className = 'lt-cell-state';
      button.append(picture, label, state);
      button.addEventListener('click', () => {
        if (button.getAttribute('aria-disabled') !== 'true') jump(Math.max(0, cell.begin - hidden));
      });
      strip.append(button);
      return { button, picture, state, begin: cell.begin, said: '' };
    });
    strip.scrollLeft = 0;
  }

  function fill(part, cell, next) {
    const now = cell.state === 'running';
    const words = { waiting: 'waiting', done: 'finished', running: next.step ? `${next.step} / ${next.steps}` : 'running' }[cell.state];
    const said = `${cell.state} ${words} ${cell.thumb}`;
    if (said === part.said) return;
    part.said = said;
    part.button.dataset.state = cell.state;
    part.button.setAttribute('aria-disabled', String(cell.state !== 'done'));
    part.button.setAttribute('aria-label', `Section ${cell.label}, ${now && next.step ? `step ${next.step} of ${next.steps}` : words}${cell.state === 'done' ? ', jump there' : ''}`);
    part.button.style.setProperty('--done', now && next.steps ? `${(100 * next.step) / next.steps}%` : '0%');
    part.state.textContent = cell.state === 'done' ? '✓' : cell.state === 'waiting' ? '' : words;
    if (cell.thumb && part.picture.getAttribute('src') !== cell.thumb) {
      part.picture.src = cell.thumb;
      part.picture.hidden = false;
    }
  }

  function see(button) {
    const left = button.offsetLeft - strip.offsetLeft, right = left + button.offsetWidth;
    if (left < strip.scrollLeft) strip.scrollLeft = left;
    else if (right > strip.scrollLeft + strip.clientWidth) strip.scrollLeft = right - strip.clientWidth;
  }

  function show(next) {
    if (made !== `${next.job} ${next.cells.length}`) build(next);
    hidden = next.hidden;
    next.cells.forEach((cell, index) => fill(cells[index], cell, next));
    const now = next.cells.findIndex((cell) => cell.state === 'running');
    if (now >= 0 && running !== next.section) {
      running = next.section;
      if (!strip.contains(document.activeElement)) see(cells[now].button);
    }
  }

  function move(event) {
    const at = cells.findIndex((part) => part.button === document.activeElement);
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: cells.length - 1 }[event.key];
    if (to === undefined || !cells[to]) return;
    event.preventDefault();
    cells.forEach((part, index) => { part.button.tabIndex = index === to ? 0 : -1; });
    cells[to].button.focus({ preventScroll: true });
    see(cells[to].button);
  }

  function mark(at) {
    let place = -1;
    cells.forEach((part, index) => { if (at + hidden >= part.begin - 0.001) place = index; });
    if (place === playing) return;
    if (cells[playing]) cells[playing].button.removeAttribute('aria-current');
    playing = place;
    if (cells[place]) cells[place].button.setAttribute('aria-current', 'true');
  }

  strip.addEventListener('keydown', move);
  return { show, mark };
}
