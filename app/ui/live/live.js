// Puts each scene that `app/ui/live/scene.py` makes into the page. Words become text, never markup.

const view = element.querySelector('.lt-view');
const find = (selector) => view.querySelector(selector);
const card = find('.lt-status');
const player = createPlayer(find('.lt-stage'));
const strip = createStrip(find('.lt-strip'), (at) => player.jump(at));
player.onTime((at) => strip.mark(at));
const timeline = createTimeline(find('.lt-memory'));

const LOST_AFTER = 4000; // milliseconds without an update; the server sends one a second
const RETRY_EVERY = 3000;
const GRACE = 10000; // for the very first update, which waits for the page to be set up
let scene = { job: '', state: 'idle' }, received = performance.now() + GRACE, retried = 0;
let beat = null, seen = null, copied = 0;

function text(selector, words) {
  const target = find(selector);
  if (target.textContent !== words) target.textContent = words;
}

function clock(seconds) {
  const all = Math.max(0, Math.round(seconds)), two = (number) => String(number).padStart(2, '0');
  const hours = Math.floor(all / 3600), minutes = Math.floor(all / 60) % 60, rest = two(all % 60);
  return hours ? `${hours}:${two(minutes)}:${rest}` : `${minutes}:${rest}`;
}

function brief(seconds) {
  return seconds < 60 ? `${Math.floor(seconds)} s` : `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
}

function remembered(name, fallback) {
  try { return localStorage.getItem(`longtake.${name}`) ?? fallback; } catch { return fallback; }
}

function remember(name, value) {
  try { localStorage.setItem(`longtake.${name}`, value); } catch { /* private windows may refuse */ }
}

function rows(list, pairs) {
  const said = JSON.stringify(pairs);
  if (list.dataset.said === said) return;
  list.dataset.said = said;
  list.replaceChildren(...pairs.map(([name, value]) => {
    const row = document.createElement('div'), term = document.createElement('dt'), fact = document.createElement('dd');
    term.textContent = name;
    fact.textContent = value;
    row.append(term, fact);
    return row;
  }));
}

// The preview of the section in the making.
const latent = find('.lt-latent'), latentShow = find('.lt-latent-show'), latentSize = find('.lt-latent-size');

function stillOf(picture) {
  const canvas = document.createElement('canvas');
  canvas.width = picture.naturalWidth;
  canvas.height = picture.naturalHeight;
  canvas.getContext('2d').drawImage(picture, 0, 0);
  return canvas.toDataURL();
}

function showPreview(preview) {
  const away = remembered('preview', 'shown') === 'hidden', large = remembered('preview-size', 'small') === 'large';
  latent.hidden = !preview || away;
  latentShow.hidden = !preview || !away;
  latent.classList.toggle('lt-large', large);
  latentSize.setAttribute('aria-pressed', String(large));
  latentSize.textContent = large ? 'Make small' : 'Enlarge';
  if (!preview) return;
  const picture = latent.querySelector('img');
  if (latent.dataset.said !== preview.data) {
    latent.dataset.said = preview.data;
    if (still.matches) {
      const moving = new Image();
      moving.onload = () => { picture.src = stillOf(moving); };
      moving.src = preview.data;
    } else picture.src = preview.data;
  }
  text('.lt-latent-label', preview.label);
}

find('.lt-latent-hide').addEventListener('click', () => { remember('preview', 'hidden'); showPreview(scene.preview); latentShow.focus(); });
latentShow.addEventListener('click', () => { remember('preview', 'shown'); showPreview(scene.preview); latentSize.focus(); });
latentSize.addEventListener('click', () => {
  remember('preview-size', latent.classList.contains('lt-large') ? 'small' : 'large');
  showPreview(scene.preview);
});

// A notification, for those who asked for it.
const notify = find('.lt-notify');
const canNotify = () => 'Notification' in window && window.isSecureContext;

function showNotify() {
  notify.hidden = !canNotify() || (scene.state !== 'running' && scene.state !== 'queued');
  if (notify.hidden) return;
  const on = remembered('notify', 'no') === 'yes' && Notification.permission === 'granted';
  notify.setAttribute('aria-pressed', String(on));
  notify.textContent = Notification.permission === 'denied' ? 'Notifications are blocked in the browser' : on ? 'You will be notified' : 'Notify me when done';
}

notify.addEventListener('click', async () => {
  const on = notify.getAttribute('aria-pressed') === 'true';
  if (!on && Notification.permission === 'default') await Notification.requestPermission();
  remember('notify', on ? 'no' : 'yes');
  showNotify();
});

function announce(words) { text('.lt-say', words); }

function ended() {
  const words = { finished: 'The video is finished', cancelled: 'The video was ended', failed: 'The video has failed' }[scene.state];
  announce(scene.failure ? '' : `${words}.`); // a failure is an alert of its own
  if (canNotify() && Notification.permission === 'granted' && remembered('notify', 'no') === 'yes') {
    const note = new Notification(`Longtake: ${words.toLowerCase()}`, { body: scene.prompt.slice(0, 120), tag: scene.job });
    note.onclick = () => { window.focus(); note.close(); };
  }
}

function follow() {
  const before = seen;
  seen = { job: scene.job, beat: scene.beat, state: scene.state, section: scene.section, open: scene.state === 'running' || scene.state === 'queued' };
  if (!before || before.job !== scene.job) {
    if (before && seen.open) announce(scene.headline);
    else if (before && before.beat && scene.job) { // over before an update came
      seen.watched = true;
      ended();
    }
  } else if (before.open && !seen.open) {
    seen.watched = true;
    ended();
  } else if (before.section !== scene.section && seen.open) announce(`Section ${scene.section} of ${scene.sections} is being made.`);
  if (before && before.job === scene.job && before.watched) seen.watched = true;
}

function titleOf() {
  if (scene.state === 'running') return `${Math.floor(scene.percent)} % · Longtake`;
  if (scene.state === 'queued') return 'Waiting · Longtake';
  const word = { finished: 'Done', cancelled: 'Ended', failed: 'Failed' }[scene.state];
  return seen && seen.watched && word ? `${word} · Longtake` : 'Longtake';
}

function facts() {
  view.dataset.state = scene.state;
  // On a narrow screen the video comes first while it is made, and does not leave when it is finished.
  view.dataset.first = Boolean(seen.open || seen.watched);
  const values = {
    state: scene.state, job: scene.job, section: scene.section, sections: scene.sections, step: scene.step,
    percent: Math.floor(scene.percent || 0), frames: scene.video ? Math.round(scene.video.seconds * 30) : 0,
  };
  for (const [name, value] of Object.entries(values)) card.dataset[name] = value ?? '';
}

function progress() {
  const meter = find('.lt-meter'), whole = Math.floor(scene.percent);
  meter.firstElementChild.style.transform = `scaleX(${scene.percent / 100})`;
  meter.setAttribute('aria-valuenow', whole);
  const part = scene.section > scene.sectionsDone && scene.steps ? Math.round((100 * scene.step) / scene.steps) : 0;
  find('.lt-section-meter').setAttribute('aria-valuenow', part);
  text('.lt-percent', `${whole} %`);
}

function downloads() {
  const link = find('.lt-download'), video = scene.video;
  link.hidden = !video;
  if (video) {
    const length = `${video.seconds.toFixed(2)} s`;
    link.href = video.url;
    link.download = video.name;
    text('.lt-download', video.whole ? `Download the video (${length})` : `Download what there is (${length})`);
  }
  text('.lt-job', `Job ${scene.job}`);
}

function warnings() {
  const list = find('.lt-warnings'), said = scene.warnings.join('\n');
  list.hidden = !said;
  if (list.dataset.said === said) return;
  list.dataset.said = said;
  list.replaceChildren(...scene.warnings.map((words) => {
    const item = document.createElement('li');
    item.textContent = words;
    return item;
  }));
}

function failure() {
  find('.lt-failure').hidden = !scene.failure;
  text('.lt-failure-message', scene.failure ? scene.failure.message : '');
  text('.lt-failure-remedy', scene.failure ? scene.failure.remedy : '');
  text('.lt-report', scene.failure ? scene.failure.report : '');
}

function figures() {
  const box = find('.lt-figures'), shown = scene.figures;
  const pairs = shown ? shown.facts : [];
  find('.lt-spent').hidden = !pairs.length && !(shown && shown.stages.length) && !scene.memory;
  find('.lt-facts').hidden = !pairs.length;
  rows(find('.lt-facts'), pairs);
  box.hidden = !shown || !shown.stages.length;
  if (box.hidden) return;
  const body = box.querySelector('tbody'), said = JSON.stringify(shown.stages);
  if (body.dataset.said === said) return;
  body.dataset.said = said;
  body.replaceChildren(...shown.stages.map((stage) => {
    const row = document.createElement('tr'), name = document.createElement('th');
    name.scope = 'row';
    name.textContent = stage.name;
    const share = document.createElement('td'), line = document.createElement('i'), length = document.createElement('td');
    share.className = 'lt-share';
    line.style.width = `${100 * stage.share}%`;
    share.append(line);
    length.textContent = stage.text;
    row.append(name, share, length);
    return row;
  }));
}

// Between two updates, and without any, the times go on here.
function times() {
  const since = Math.max(0, performance.now() - received) / 1000, lost = since * 1000 > LOST_AFTER;
  const running = scene.state === 'running', pulse = find('.lt-pulse');
  let kind = 'none', words = '';
  if (lost) {
    kind = 'lost';
    words = 'Connection lost. A video in the making goes on; this page tries again by itself.';
  } else if (running) {
    const quiet = scene.quiet + since;
    kind = quiet > scene.calm ? 'quiet' : 'alive';
    words = kind === 'quiet' ? `No sign of life for ${brief(quiet)}: ${scene.usual}.` : `Last sign of life ${quiet < 1.5 ? 'just now' : `${brief(quiet)} ago`}.`;
  }
  pulse.dataset.kind = kind;
  text('.lt-pulse-text', words);
  let eta = '';
  if (running) {
    const left = scene.left === null || lost ? null : Math.max(0, scene.left - since);
    const soFar = `${clock(scene.elapsed + since)} so far`;
    eta = left === null ? soFar : left < 1 ? `nearly done · ${soFar}` : `about ${clock(left)} left · ${soFar}`;
  } else if (scene.elapsed) eta = `took ${clock(scene.elapsed)}`;
  text('.lt-eta', eta);
  if (lost) retry();
}

// Gradio notices a server that went away, and loads the page anew when it is back. A connection that only
// hangs, as after a laptop's sleep, it does not notice: then we ask for another subscription.
async function retry() {
  if (performance.now() - retried < RETRY_EVERY) return;
  retried = performance.now();
  try {
    const answer = await fetch('gradio_api/startup-events', { cache: 'no-store', signal: AbortSignal.timeout(RETRY_EVERY) });
    if (answer.ok && performance.now() - received > LOST_AFTER) trigger('submit');
  } catch { /* still away */ }
}

function pulseOnce() {
  if (scene.sign === beat) return;
  beat = scene.sign;
  const dot = find('.lt-dot');
  dot.classList.toggle('lt-beat-a');
  dot.classList.toggle('lt-beat-b', !dot.classList.contains('lt-beat-a'));
}

function show() {
  scene = props.value || scene;
  received = performance.now();
  follow();
  facts();
  if (scene.state !== 'idle') {
    text('.lt-headline', scene.headline);
    text('.lt-remark', scene.remark);
    progress();
    strip.show(scene);
    downloads();
    warnings();
    failure();
    figures();
    timeline.show(scene.memory);
    text('.lt-prompt', scene.prompt);
    find('.lt-settings').hidden = false;
    rows(find('.lt-settings dl'), scene.settings);
    pulseOnce();
  }
  showNotify();
  player.show(scene);
  showPreview(scene.preview || null);
  times();
  document.title = titleOf();
}

const copy = find('.lt-copy');
copy.addEventListener('click', async () => {
  const report = find('.lt-report');
  try {
    await navigator.clipboard.writeText(report.textContent);
    copy.textContent = 'Copied';
  } catch { // without a secure context there is no clipboard: select it for the person
    find('.lt-failure details').open = true;
    window.getSelection().selectAllChildren(report);
    copy.textContent = 'Selected: press Ctrl + C';
  }
  clearTimeout(copied);
  copied = setTimeout(() => { copy.textContent = 'Copy report'; }, 4000);
});

watch('value', show);
show();
const timer = setInterval(() => (element.isConnected ? times() : clearInterval(timer)), 500);
