// Two videos on top of each other. The next version is loaded and brought to the right moment in the lower
// one, and only then put on top: what is being watched neither jumps nor goes black.

const FRAME = 1 / 30;
const still = window.matchMedia('(prefers-reduced-motion: reduce)');

function createPlayer(stage) {
  const find = (selector) => stage.querySelector(selector);
  const bar = find('.lt-bar'), playButton = find('.lt-play'), time = find('.lt-time'), seek = find('.lt-seek');
  const poster = find('.lt-poster'), fit = find('.lt-fit');
  let [top, under] = stage.querySelectorAll('video');
  let job = null; // what `top` shows: { job, url, front }
  let seekSeconds = 0.05, shown = null, wanted = null, asked = '', swapping = false, loops = false, held = false;
  const listeners = [];

  const isOver = (video) => video.ended || (video.duration && video.currentTime >= video.duration - 0.001);
  // `held` marks a video that only stands at its end because a swap keeps it from starting over.
  const isPlaying = () => !top.paused || (held && isOver(top));
  const play = (video) => video.play().catch(() => {});

  function once(target, name, limit) {
    return new Promise((done, fail) => {
      const clean = () => { clearTimeout(timer); target.removeEventListener(name, ok); target.removeEventListener('error', bad); };
      const ok = () => { clean(); done(); };
      const bad = () => { clean(); fail(new Error(`${name} did not come`)); };
      const timer = setTimeout(bad, limit);
      target.addEventListener(name, ok);
      target.addEventListener('error', bad);
    });
  }

  async function seekTo(video, at) {
    if (Math.abs(video.currentTime - at) < 0.001 && video.readyState >= 2) return;
    const done = once(video, 'seeked', 15000);
    video.currentTime = at;
    await done;
  }

  async function load(video, url) {
    const done = once(video, 'loadeddata', 30000);
    video.src = url;
    video.load();
    await done;
  }

  // The moment of the new version that shows what the old one shows now.
  const moved = (target) => top.currentTime + target.front - shown.front;

  // Brings the lower video to where the upper one is, or, while that plays, to where it will be when the seek
  // is over: that takes about as long as the one before did.
  async function align(target) {
    for (let lead = 0, round = 0; round < 6; round += 1) {
      lead = Math.max(2 * lead, 1.5 * seekSeconds + FRAME);
      const playing = isPlaying() && !isOver(top);
      const last = Math.max(0, under.duration - FRAME / 2);
      const reach = Math.min(moved(target) + (playing ? lead : 0), top.duration + target.front - shown.front);
      const began = performance.now();
      await seekTo(under, Math.max(0, Math.min(reach, last)));
      seekSeconds = (performance.now() - began) / 1000;
      const deadline = performance.now() + 1000 + 2000 * lead;
      while (!top.paused && !isOver(top) && moved(target) < under.currentTime - 0.5 * FRAME) {
        if (performance.now() > deadline || under.currentTime - moved(target) > lead + 0.1) break;
        await new Promise((next) => setTimeout(next, 8));
      }
      if (Math.abs(moved(target) - under.currentTime) < 0.05 || (held && isOver(top))) return;
    }
  }

  async function swap() {
    swapping = true;
    while (wanted) {
      const target = wanted;
      wanted = null;
      const same = shown && shown.job === target.job;
      try {
        await load(under, target.url);
        if (same) {
          held = true;
          top.loop = false;
          await align(target);
        }
        if (target.job !== job) continue;
        const plays = same ? isPlaying() : target.autoplay && !still.matches;
        for (const name of ['volume', 'muted', 'playbackRate']) under[name] = top[name];
        under.loop = loops;
        bring(target);
        if (plays) play(top);
      } catch (error) {
        // Replaced by a newer version meanwhile, or the connection was lost: asked for again, if still wanted.
        console.info('video:', error.message);
        setTimeout(() => { if (asked === target.url) asked = ''; }, 1000);
      } finally {
        top.loop = loops;
        if (held && top.ended && loops && shown) play(top);
        held = false;
      }
    }
    swapping = false;
  }

  function bring(target) {
    const old = top;
    [top, under] = [under, top];
    shown = target;
    top.classList.add('lt-top');
    old.classList.remove('lt-top');
    top.removeAttribute('aria-hidden');
    top.setAttribute('aria-label', 'The video so far');
    old.setAttribute('aria-hidden', 'true');
    old.pause();
    stage.dataset.state = 'video';
    stage.dataset.url = target.url;
    stage.dataset.swaps = Number(stage.dataset.swaps || 0) + 1;
    bar.hidden = false;
    update();
  }

  function clear(next) {
    for (const video of [top, under]) {
      video.pause();
      video.removeAttribute('src');
      video.load();
      video.classList.remove('lt-top');
    }
    shown = wanted = null;
    asked = '';
    bar.hidden = true;
    stage.dataset.swaps = 0;
    stage.dataset.url = '';
    poster.hidden = !next.poster;
    if (next.poster) poster.src = next.poster; else poster.removeAttribute('src');
    stage.dataset.state = next.poster ? 'picture' : 'empty';
  }

  function show(next) {
    if (next.job !== job) {
      job = next.job;
      clear(next);
    }
    stage.style.setProperty('--ratio', next.ratio || '');
    fit.classList.toggle('lt-shaped', Boolean(next.ratio));
    loops = next.state === 'running' && !still.matches;
    if (!swapping) top.loop = loops;
    const video = next.video;
    if (!video || asked === video.url) return;
    asked = video.url;
    wanted = { job, url: video.url, front: video.front, autoplay: next.state === 'running' };
    if (!swapping) swap();
  }

  function text(seconds) { return seconds.toFixed(1); }

  function update() {
    const length = top.duration || 0, at = Math.min(top.currentTime, length);
    const label = `${text(at)} / ${text(length)} s`;
    if (time.textContent !== label) {
      time.textContent = label;
      seek.setAttribute('aria-valuetext', `${text(at)} of ${text(length)} seconds`);
    }
    if (Number(seek.max) !== length) seek.max = length || 1;
    seek.value = at;
    seek.style.setProperty('--done', length ? `${(100 * at) / length}%` : '0%');
    const playing = isPlaying();
    if (stage.dataset.playing !== String(playing)) {
      stage.dataset.playing = playing;
      playButton.setAttribute('aria-label', playing ? 'Pause' : 'Play');
      playButton.title = playing ? 'Pause (space)' : 'Play (space)';
    }
    for (const listener of listeners) listener(at);
  }

  function toggle() {
    if (!shown) return;
    if (isPlaying()) { held = false; top.pause(); return; }
    if (isOver(top)) top.currentTime = 0;
    play(top);
  }

  function jump(at) {
    if (!shown) return;
    top.currentTime = Math.max(0, Math.min(at, (top.duration || 0) - FRAME / 2));
    update();
  }

  function fullScreen() {
    if (document.fullscreenElement) document.exitFullscreen();
    else if (stage.requestFullscreen) stage.requestFullscreen().catch(() => {});
  }

  function key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !shown) return;
    const inButton = event.target.tagName === 'BUTTON';
    const action = {
      ' ': inButton ? null : toggle,
      k: toggle,
      f: fullScreen,
      ArrowLeft: () => jump(top.currentTime - 1),
      ArrowRight: () => jump(top.currentTime + 1),
      ',': () => jump(top.currentTime - FRAME),
      '.': () => jump(top.currentTime + FRAME),
      Home: () => jump(0),
      End: () => jump(Infinity),
    }[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }

  playButton.addEventListener('click', toggle);
  find('.lt-full').addEventListener('click', fullScreen);
  fit.addEventListener('click', toggle);
  seek.addEventListener('input', () => jump(Number(seek.value)));
  stage.addEventListener('keydown', key);
  document.addEventListener('fullscreenchange', () => {
    find('.lt-full').textContent = document.fullscreenElement ? 'Leave full screen' : 'Full screen';
  });
  for (const video of [top, under]) {
    for (const name of ['play', 'pause', 'ended', 'timeupdate', 'seeked', 'durationchange']) {
      video.addEventListener(name, () => { if (video === top) update(); });
    }
  }
  (function tick() {
    if (shown && !top.paused) update();
    requestAnimationFrame(tick);
  })();

  return { show, jump, onTime: (listener) => listeners.push(listener), get top() { return top; } };
}
