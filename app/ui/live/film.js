// A video with all that belongs to it, as the Create tab shows the one that is made, and the History tab any other.
import { fillRows, fromTemplate, hasChanged, make, makeItem, makeRow, offerCopy, render, roam, setText } from '../elements.js';
import { translated } from '../language.js';
import { prepareActions, prepareReport, prepareStill } from './actions.js';
import { prepareExports } from './exports.js';
import { prepareFinishing } from './finishing.js';
import { Panel } from './panel.js';
import { Player } from './player.js';
import { prepareTakes } from './takes.js';

const PAUSE = 2000; // milliseconds between two readings
const NEAR = 8; // pixels from the end within which a reader follows the log
const NOTHING = { job: '', poster: null, video: null };
const stageView = document.querySelector('.lt-view');

/** The view for a video of the history: a copy of the stage's, before anything is shown in it. */
export const pastView = stageView.cloneNode(true);
for (const part of [...pastView.querySelectorAll('.lt-of-now'), ...stageView.querySelectorAll('.lt-of-past')]) part.remove();

/** Set up the log of a job. The result shows it for a scene. */
function prepareLog(fold) {
  const box = fold.querySelector('pre');
  let shown = { log: '', isRunning: false };
  let timer = 0;

  async function read() {
    clearTimeout(timer);
    const address = shown.log;
    if (!fold.open || !address) return;
    timer = setTimeout(read, PAUSE);
    // If the server does not answer, the next reading may succeed.
    const answer = await fetch(new URL(address, document.baseURI), { cache: 'no-store' }).catch(() => null);
    const text = answer?.ok === false ? 'Nothing has been logged for this video.' : await answer?.text().catch(() => undefined);
    if (text === undefined || address !== shown.log) return;
    // The engine may log a little more after the job's end.
    if (!shown.isRunning && box.textContent === text) clearTimeout(timer);
    const follows = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR;
    setText(box, text);
    if (follows) box.scrollTop = box.scrollHeight;
  }

  fold.addEventListener('toggle', read);
  return ({ log, isRunning }) => {
    fold.hidden = !log;
    if (!log || (log === shown.log && isRunning === shown.isRunning)) return;
    if (log !== shown.log) setText(box, '');
    shown = { log, isRunning };
    read();
  };
}

const factRow = ([name, value, isWritten]) => make('div', {}, make('dt', { textContent: name }), make('dd', { textContent: value, translate: !isWritten }));

const stageRow = ({ name, text, share }) => makeRow([name, make('i', { style: `width: ${100 * share}%` }), text]);

function showFigures(find, { job, figures, memory }) {
  const { facts = [], stages = [] } = figures || {};
  const fold = find('.lt-details');
  fillRows(find('.lt-facts'), facts, factRow);
  fillRows(find('.lt-figures tbody'), stages, stageRow);
  if (hasChanged(fold, [job, memory?.isNear])) fold.open ||= memory?.isNear ?? false;
  fillRows(find('.lt-memory tbody'), memory?.rows ?? [], makeRow);
}

function showStatus(view, scene) {
  const find = (selector) => view.querySelector(selector);
  const { state, job, section = '', sections = '', step = '', percent = 0, video, memory, failure } = scene;
  const whole = Math.floor(percent);
  Object.assign(find('.lt-status').dataset, { state, job, section, sections, step, percent: whole, frames: video?.frames ?? 0 });
  find('.lt-records').hidden = !job;
  const facts = job && {
    ...scene, ...failure, ...video, id: `Job ${job}`, prompt: scene.prompt || translated('No prompt'), whole: `${whole} %`, ...(!scene.isRunning && { eta: scene.took }),
    memoryNote: memory?.note ?? '', peak: memory?.say ?? '', hasWarnings: scene.warnings.length > 0, hasFigures: scene.figures?.stages.length > 0,
    mayDownload: video || scene.isOpen, wholePercent: whole, sectionPercent: Math.floor(scene.sectionPercent), done: `transform:scaleX(${percent / 100})`,
  };
  for (const part of ['.lt-status', '.lt-records']) render(find(part), facts || { wholePercent: 0, sectionPercent: 0 });
  if (!job) return;
  fillRows(find('.lt-warnings'), scene.warnings, makeItem);
  showFigures(find, scene);
  fillRows(find('.lt-settings'), scene.settings, factRow);
}

function makeCell(first, press) {
  const button = fromTemplate('section-cell');
  let cell = first;
  button.dataset.section = first.number;
  button.addEventListener('click', () => { if (cell.isDone) press(cell); });
  return {
    button,
    get begin() { return cell.begin; },
    get isDone() { return cell.isDone; },
    show(now) {
      if (!hasChanged(button, now)) return;
      cell = now;
      // The style draws what the button's name has in another order.
      render(button, { ...cell, rests: String(!cell.isDone), name: `Section ${cell.label}, ${cell.spoken}`, done: `--done:${cell.percent}%` });
    },
  };
}

const nextOf = (sections) => (
  sections.reduce((best, cell, index) => (cell.isDone || sections[best]?.number < cell.number ? best : index), -1)
);

function reveal(strip, button) {
  const left = button.offsetLeft; // within the strip
  const least = left + button.offsetWidth - strip.clientWidth;
  strip.scrollLeft = Math.max(least, Math.min(left, strip.scrollLeft));
}

/** The strip of sections in order of the video. A press on a finished one calls `jump` with its time, and `press` with it. */
function makeStrip(strip, jump, press) {
  let cells = [];
  let made = ''; // the job and the number of sections that the buttons were made for
  let seen = ''; // the section that was last brought into view, and the strip's width then
  let playing = -1;

  function build({ cells: sections }) {
    [seen, playing] = ['', -1];
    cells = sections.map((section) => makeCell(section, (cell) => {
      jump(cell.begin);
      press(cell);
    }));
    cells.forEach(({ button }, index) => { button.tabIndex = index ? -1 : 0; });
    strip.replaceChildren(...cells.map(({ button }) => button));
    strip.scrollLeft = 0;
  }

  // The strip may be hidden, or not laid out yet, when its first scene arrives.
  function revealNext(sections) {
    const next = nextOf(sections);
    const now = `${next} ${strip.clientWidth} ${strip.scrollWidth}`;
    if (next < 0 || seen === now) return;
    seen = now;
    reveal(strip, cells[next].button);
  }

  roam(strip, () => cells.map((cell) => cell.button), (button) => reveal(strip, button));
  return {
    show(scene) {
      const wanted = `${scene.job} ${scene.cells.length}`;
      if (made !== wanted) build(scene);
      made = wanted;
      scene.cells.forEach((cell, index) => cells[index].show(cell));
      if (scene.isOpen && !strip.contains(document.activeElement)) revealNext(scene.cells);
    },
    /** Show that only so many sections stay, in the order of making; null for all. */
    cut(keep) {
      for (const { button } of cells) button.dataset.goes = keep !== null && button.dataset.section > keep;
    },
    /** Mark the section at a time in the whole video; at the end of what exists, that is the last one made. */
    mark(at) {
      const now = cells.findLastIndex((cell) => cell.isDone && at >= cell.begin - 0.001);
      if (now === playing) return;
      cells[playing]?.button.removeAttribute('aria-current');
      playing = now;
      cells[playing]?.button.setAttribute('aria-current', 'true');
    },
  };
}

/** Place the start picture as the video is cut from it, whose shape is known from its first event on. */
function placePicture(picture, { ratio, crop: [x, y, zoom] }) {
  const wide = picture.naturalWidth / picture.naturalHeight / (ratio || 1.6) || 1;
  const [width, height] = [zoom * Math.max(1, wide), zoom * Math.max(1, 1 / wide)].map((share) => 100 * share);
  Object.assign(picture.style, { width: `${width}%`, height: `${height}%`, left: `${(100 - width) * x}%`, top: `${(100 - height) * y}%` });
}

/** A film in a view. `open` shows another job; `expect` is called when a user has queued or resumed a video. */
export function makeFilm(view, open, expect = () => {}) {
  const find = (selector) => view.querySelector(selector);
  const { say: report, turnTo } = prepareReport(find('.lt-after-say'));
  const panel = new Panel(find('.lt-panel'), (keep) => strip.cut(keep), report, expect);
  const showActions = prepareActions(find('.lt-actions'), panel, report, expect);
  const strip = makeStrip(find('.lt-strip'), (at) => player.jumpTo(at), (cell) => panel.press(cell));
  const player = new Player(find('.lt-stage'), strip.mark);
  const showFinishing = prepareFinishing(view, player, report, expect);
  const showStill = prepareStill(find('.lt-still'), player, report);
  const showExports = prepareExports(find('.lt-export'), report);
  const showLog = prepareLog(find('.lt-log'));
  let shown = {};
  const place = () => { if (shown.poster) placePicture(find('.lt-poster'), shown); };
  find('.lt-poster').addEventListener('load', place);
  const showTakes = prepareTakes(find('.lt-takes'), panel, open, report);
  offerCopy(find('.lt-copy'), find('.lt-report'));
  return {
    report,
    show(scene) {
      const film = find('.lt-film');
      view.dataset.state = scene.state;
      film.dataset.words = scene.words ?? 'beneath';
      film.style.setProperty('--ratio', scene.ratio || '');
      film.style.setProperty('--widest', scene.widest ? `${scene.widest}px` : '');
      setText(find('.lt-empty b'), scene.blank ?? 'No video yet');
      if (scene.job) strip.show(scene);
      showStatus(view, scene);
      turnTo(scene);
      showActions(scene);
      showFinishing(scene);
      panel.show(scene);
      showTakes(scene.takes ?? null, scene.job);
      player.show(scene);
      shown = scene;
      place();
      showStill(scene);
      showExports(scene);
      showLog(scene);
    },
    clear() {
      player.show(NOTHING);
      showLog({ log: '' });
      showTakes(null);
    },
  };
}
