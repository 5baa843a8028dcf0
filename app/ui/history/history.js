// The History tab: all videos as cards with a search and filters, or one opened video, which has its own address.
import { actOnce, arrange, fillRows, hasChanged, make, makeButton, offerCopy, onPress, render, setOptions, setText } from '../elements.js';
import { restoreForm } from '../form/describe.js';
import { queueNow, onJobsReported } from '../jobs.js';
import { compare } from '../live/compare.js';
import { offerToFinish } from '../live/finishing.js';
import { makeFilm, pastView } from '../live/film.js';
import { post } from '../server.js';
import { goTo, place, whenShown } from '../tabs.js';
import { clock, dayOf, exactly } from '../text.js';
import { focusUndo, offerUndo } from '../undo.js';
import { makeCard } from './card.js';

const PAGE = 24;
const MOST = 200; // the most that an endpoint returns
const TYPING = 200; // milliseconds without a key before a search
const LEAST_PAUSE = 1000; // milliseconds between two refreshes
const MOST_WORDS = 60; // characters of a prompt beside Undo
const MOST_BYTES = 2e9; // of a ZIP file
const SURE = 'Press again to delete it';

const past = document.querySelector('.lt-past');
const find = (selector) => past.querySelector(selector);
const [list, more, favourites, models] = ['.lt-videos', '.lt-more', '.lt-find-favourites', '.lt-find-model'].map(find);
let cards = new Map(); // by job
const headings = new Map(); // by day
let shownCards = []; // what the server said of those that are no further versions
const stacks = new Map(); // what it said of the versions in the stacks that are open, by their roots
let next = ''; // what the next page begins after
let asked = 0; // the number of the last request, since only the last answer counts
let typing = 0;
let note = ''; // a sentence before the number of videos
let isLost = false; // whether the last link led to no video
let film = null; // that of the opened video, made when the first one is opened
let open = ''; // the job of the video that is open
let shown = null; // the card of that video
let scrolled = 0; // where the gallery is: the tabs have scrolled to the top before another place is shown
let left = 0; // where it was left
let revision = null; // of the jobs that are shown
let looked = 0;
let removed = ''; // the video that was removed last

const isPressed = () => favourites.getAttribute('aria-pressed') === 'true';
const report = (words) => setText(find('.lt-gallery-count'), words);
const lookAgain = () => { revision = null; }; // with the next update, since the server had no answer

function wanted() {
  const chosen = (name) => find(`.lt-find-${name}`).value;
  const [least, most] = chosen('length').split('-').map((bound) => bound || null);
  return {
    text: chosen('text'), states: chosen('state').split(' '), model: chosen('model'),
    min_seconds: least, max_seconds: most, favourites: isPressed(),
  };
}

function draw() {
  const before = cards;
  cards = new Map();
  let day = '';
  const drawCard = (data, isOpen) => {
    const card = before.get(data.job) ?? makeCard(report);
    cards.set(data.job, card);
    card.show(data, day, isOpen);
    return card.element;
  };
  arrange(list, shownCards.flatMap((data) => {
    const isNewDay = day !== dayOf(data.newest);
    day = dayOf(data.newest);
    const versions = (data.root && stacks.get(data.root)) || [];
    const drawn = [drawCard(data, versions.length > 0), ...versions.filter(({ job }) => job !== data.job).map((version) => drawCard(version, false))];
    drawn.forEach((element) => { element.dataset.stacked = versions.length > 0; });
    if (isNewDay && !headings.has(day)) headings.set(day, make('li', { className: 'lt-day' }, make('h3', { textContent: day })));
    return isNewDay ? [headings.get(day), ...drawn] : drawn;
  }));
  list.dataset.shown = cards.size;
  showPicked();
}

function show(found, before) {
  const isNew = ({ job, root }) => found.cards.every((data) => data.job !== job && (!root || data.root !== root));
  shownCards = [...(before ? shownCards.filter(isNew) : []), ...found.cards];
  draw();
  next = found.next;
  more.hidden = !next;
  end.unobserve(more); // an observer also reports when it begins, so it sees an end that has stayed in sight
  if (next) requestAnimationFrame(() => end.observe(more));
  report([note, found.say].filter(Boolean).join(' '));
  setText(find('.lt-gallery-none'), found.none);
  if (!hasChanged(models, found.models)) return;
  setOptions(models, [['', 'Any model'], ...found.models.map((model) => [model, model])]);
  models.hidden = found.models.length < 2;
}

async function readStack(root) {
  const found = await post('history_search', { ...wanted(), root, limit: MOST });
  stacks.set(root, found.cards);
}

async function load(before = '', limit = PAGE) {
  clearTimeout(typing);
  asked += 1;
  const own = asked;
  more.setAttribute('aria-busy', 'true');
  try {
    const [found] = await Promise.all([
      post('history_search', { ...wanted(), stacked: true, before, limit }), ...(before ? [] : [...stacks.keys()].map(readStack)),
    ]);
    if (own === asked) show(found, before);
  } catch (error) {
    if (error.isAway) lookAgain();
    else if (own === asked) report(error.message);
  } finally {
    if (own === asked) more.removeAttribute('aria-busy');
  }
}

const picked = () => [...cards.values()].filter((card) => card.isPicked).map((card) => card.data);

/** Show what can be done with the selected videos, the size of whose ZIP file is known before it is made. */
function showPicked() {
  const videos = picked();
  const bytes = videos.reduce((sum, video) => sum + video.bytes, 0);
  const isTooMuch = bytes > MOST_BYTES;
  const box = find('.lt-picked');
  box.hidden = !videos.length;
  past.dataset.picking = videos.length > 0;
  const size = bytes < 1e6 ? `${Math.ceil(bytes / 1e3)} kB` : `${(bytes / 1e6).toFixed(1)} MB${isTooMuch ? ': select less than 2 GB' : ''}`;
  render(box, {
    picked: `${videos.length} selected · ${size}`, mayZip: bytes && !isTooMuch, mayCompare: videos.length === 2 && videos.every(({ video }) => video),
    zip: `api/history/zip?${new URLSearchParams(videos.map(({ job }) => ['jobs', job]))}`, mayRemove: videos.every(({ actions }) => actions.includes('remove')),
  });
}

function comparePicked() {
  const videos = picked();
  compare(videos.map((video, side) => ({
    name: `${clock(video.created)} · ${video.words.slice(0, MOST_WORDS) || 'No prompt'}`,
    url: video.video,
    begin: 0,
    keep: videos[1 - side].actions.includes('remove') && `Keep ${side ? 'right, remove left' : 'left, remove right'}`,
    video,
    act: (other) => remove([other.video]),
  })));
}

const refresh = () => load('', Math.min(MOST, Math.max(1, Math.ceil(shownCards.length / PAGE)) * PAGE));

function loadMore() {
  if (next && more.getAttribute('aria-busy') !== 'true') load(next);
}

// The next page is loaded before the end of this one is reached.
const end = new IntersectionObserver(([entry]) => { if (entry.isIntersecting) loadMore(); }, { rootMargin: '600px' });

const stateRow = ({ label, time, reason }) => make(
  'li', {},
  make('b', { textContent: label }),
  make('time', { textContent: time ? exactly(time) : '' }),
  make('span', { textContent: reason }),
);

function fileRow({ name, size, url }) {
  const title = url ? make('a', { href: url, textContent: name, target: '_blank', rel: 'noopener' }) : make('span', { textContent: name });
  return make('li', {}, title, make('span', { textContent: size }));
}

function treeRow({ job, begin, cells, words, spoken, isOpened }, index) {
  const strip = make('span', {}, ...cells.map((src) => (src ? make('img', { src, alt: '', loading: 'lazy' }) : make('i'))));
  const link = make('a', { href: `#history/${job}`, ariaLabel: spoken }, strip, make('small', { textContent: words }));
  if (isOpened) link.setAttribute('aria-current', 'page');
  return make('li', { style: `grid-row: ${index + 1}; grid-column: ${begin} / -1` }, link);
}

const treeLine = ({ parent, begin }, index) => (
  make('li', { className: 'lt-tree-line', ariaHidden: 'true', style: `grid-row: ${parent + 1} / ${index + 3}; grid-column: ${begin}` })
);

const ofVideo = (part) => find(`.lt-past-open .lt-${part}`);

function showTree(tree) {
  const rows = ofVideo('tree');
  if (!hasChanged(rows, tree) || !tree) return;
  const { href } = rows.contains(document.activeElement) ? document.activeElement : {};
  rows.style.setProperty('--columns', tree.columns);
  rows.dataset.inverted = tree.isInverted;
  rows.replaceChildren(...tree.rows.map(treeRow), ...tree.rows.slice(1).map(treeLine));
  if (href) [...rows.querySelectorAll('a')].find((link) => link.href === href)?.focus();
}

const sayAbove = (words) => setText(ofVideo('past-say'), words);

function prepareVideo() {
  find('.lt-past-open').replaceChildren(pastView);
  film = makeFilm(ofVideo('view'), (job) => goTo('history', job));
  ofVideo('status').ariaLabel = 'This video';
  onPress(ofVideo('settings-use'), async () => restoreForm(await post('history_settings', { job: open })), film.report);
  onPress(ofVideo('remove'), () => remove([shown]));
  offerCopy(ofVideo('copy-link'), ofVideo('address'));
}

function showVideo(video) {
  shown = video.card;
  film.show(video);
  setText(ofVideo('made'), `${dayOf(shown.created)}, ${clock(shown.created)} · ${shown.model}`);
  setText(ofVideo('address'), new URL(`#history/${video.job}`, document.baseURI).href);
  ofVideo('remove').hidden = !video.actions.includes('remove');
  fillRows(ofVideo('states'), video.states, stateRow);
  fillRows(ofVideo('files'), video.files, fileRow);
  ofVideo('family').hidden = !video.tree;
  showTree(video.tree);
  find('.lt-past-open').dataset.job = video.job; // shows that the view is complete
}

async function refreshVideo() {
  const job = open;
  try {
    const video = await post('history_open', { job });
    if (job === open) showVideo(video);
  } catch (error) {
    if (error.isAway) lookAgain();
    if (job !== open) return;
    isLost = error.status === 404;
    if (isLost) goTo('history');
    else sayAbove(error.message);
  }
}

async function openVideo(job, before) {
  if (!before) left = scrolled;
  if (!film) prepareVideo();
  find('.lt-past-open').dataset.job = '';
  sayAbove('');
  film.report('');
  film.clear();
  await refreshVideo();
  if (open === job) ofVideo('back').focus({ preventScroll: true });
}

async function showGallery(before) {
  film?.clear();
  if (before) window.scrollTo(0, left);
  if (before && before === removed) focusUndo();
  else if (before) cards.get(before)?.focus();
  note = isLost ? 'The video of that link is not here any more; these are all videos.' : '';
  isLost = false;
  await refresh();
}

function turnTo(job) {
  const before = open;
  open = job;
  find('.lt-gallery').hidden = Boolean(job);
  find('.lt-past-open').hidden = !job;
  past.dataset.state = job ? 'open' : 'gallery';
  revision = queueNow().revision;
  return job ? openVideo(job, before) : showGallery(before);
}

// Changes that other pages and programs make are shown, too.
function follow() {
  if (place()[0] !== 'history' || queueNow().revision === revision || performance.now() - looked < LEAST_PAUSE) return;
  looked = performance.now();
  revision = queueNow().revision;
  if (open) refreshVideo();
  else lookAtAll().catch((error) => report(error.message));
}

async function remove(videos) {
  const jobs = videos.map(({ job }) => job);
  try {
    await post('jobs_remove', { jobs });
  } catch (error) {
    (open ? sayAbove : report)(error.message);
    return;
  }
  [removed] = jobs;
  offerUndo(jobs, videos[0].words.slice(0, MOST_WORDS) || removed);
  focusUndo();
  if (open) goTo('history');
  else lookAtAll().catch((error) => report(error.message));
}

async function erase(action, jobs) {
  await post(`jobs_${action}`, jobs);
  await lookAtAll();
}

/** The row of a video with its size, whose button deletes it with the second press. */
function spaceRow({ id, title, size }) {
  const button = makeButton('Delete for good', async () => {
    if (button.textContent === SURE) {
      await erase('delete', { jobs: [id] });
      return;
    }
    setText(button, SURE);
    button.ariaLabel = `${SURE}: ${title}`;
  }, { ariaLabel: `Delete for good: ${title}` }, report);
  return make('li', {}, make('a', { href: `#history/${id}`, textContent: title }), make('span', { textContent: size }), button);
}

async function showSpace() {
  if (!find('.lt-space').open) return;
  const usage = await post('jobs_usage');
  setText(find('.lt-space-say'), usage.say);
  find('.lt-space-empty').hidden = !usage.removed_bytes;
  find('.lt-space-videos').replaceChildren(...usage.jobs.map(spaceRow));
}

const lookAtAll = () => Promise.all([refresh(), showSpace()]);

function takeKey(event) {
  const isTyping = event.target.matches('input:not([type="checkbox"]), textarea, select');
  if (event.key === 'Escape' && open && !isTyping && !document.fullscreenElement) goTo('history');
  if (event.key !== 'Delete' || isTyping || open) return;
  const card = cards.get(event.target.closest('.lt-video-card')?.dataset.job);
  if (card) remove(card.isPicked ? picked() : [card.data]);
}

export default function startHistory() {
  find('.lt-find').addEventListener('submit', (event) => event.preventDefault()); // the search follows what is typed
  find('.lt-find-text').addEventListener('input', () => {
    clearTimeout(typing);
    typing = setTimeout(load, TYPING);
  });
  for (const select of past.querySelectorAll('.lt-find select')) select.addEventListener('change', () => load());
  favourites.addEventListener('click', () => {
    favourites.setAttribute('aria-pressed', String(!isPressed()));
    load();
  });
  more.addEventListener('click', loadMore);
  find('.lt-space').addEventListener('toggle', () => { showSpace().catch((error) => report(error.message)); });
  onPress(find('.lt-space-empty'), () => erase('empty_trash', {}), report);
  list.addEventListener('click', ({ target }) => {
    if (!target.matches('.lt-stack')) return;
    const { root } = target.dataset;
    actOnce(target, () => Promise.resolve(stacks.delete(root) || readStack(root)).then(draw), report);
  });
  list.addEventListener('change', showPicked);
  offerToFinish(find('.lt-finish-file'), report);
  find('.lt-picked-compare').addEventListener('click', comparePicked);
  onPress(find('.lt-picked-remove'), () => remove(picked()));
  find('.lt-picked-none').addEventListener('click', () => {
    for (const card of cards.values()) card.isPicked = false;
    showPicked();
  });
  past.addEventListener('keydown', takeKey);
  whenShown('history', turnTo);
  onJobsReported(follow);
  window.addEventListener('scroll', () => { if (!open && place()[0] === 'history') scrolled = window.scrollY; }, { passive: true });
  // Another tab stops playback.
  window.addEventListener('hashchange', () => {
    if (place()[0] === 'history' || !open) return;
    open = '';
    film.clear();
  });
}
