// The stage: the video so far, or the start picture, with controls, keys and full screen.
import { asPng, drawn, dropVideo, reducedMotion, setOptions, setText } from '../elements.js';

const FRAME = 1 / 30; // the shortest duration of a frame, in seconds
const LOAD_LIMIT = 30000; // milliseconds
const SEEK_LIMIT = 15000;
const RETRY_AFTER = 1000;
const [SHORTEST_LEAD, LONGEST_LEAD] = [0.1, 5]; // seconds by which a video that plays is caught up with
const CLOSE_ENOUGH = 0.05; // seconds
const SPEEDS = [0.25, 0.5, 1, 1.5, 2];
const EVENTS = ['play', 'pause', 'ended', 'seeked', 'durationchange'];

const isOver = (video) => video.ended || (video.duration && video.currentTime >= video.duration - 0.001);
const begin = (video) => video.play().catch(() => {});
const wait = (milliseconds) => new Promise((done) => { setTimeout(done, milliseconds); });

/** Resolve when the video sends the event; reject on its error, after the limit, or when `calledOff` aborts. */
async function once(video, name, limit, calledOff) {
  const listening = new AbortController();
  const { signal } = listening;
  await new Promise((done, fail) => {
    const bad = () => fail(new Error(`${name} did not come`));
    video.addEventListener(name, done, { signal });
    video.addEventListener('error', bad, { signal });
    for (const end of [calledOff, AbortSignal.timeout(limit)]) end.addEventListener('abort', bad, { signal });
  }).finally(() => listening.abort());
}

async function seekTo(video, at, calledOff) {
  if (Math.abs(video.currentTime - at) < 0.001 && video.readyState >= 2) return;
  const done = once(video, 'seeked', SEEK_LIMIT, calledOff);
  video.currentTime = at;
  await done;
}

async function load(video, url, calledOff) {
  const done = once(video, 'loadeddata', LOAD_LIMIT, calledOff);
  video.src = url;
  video.load();
  await done;
}

/**
 * The versions of one job's video, in two videos on top of each other. The next version is loaded and brought to the
 * right moment in the lower one, and only then put on top, so that the picture neither jumps nor goes black.
 */
class Videos {
  #top;
  #under;
  #onSwap;
  #shown = null; // the version on top: { url, front, hidden, fps, autoplay }
  #wanted = null; // the version that comes next
  #asked = ''; // the address that was asked for last
  #isSwapping = false;
  #loops = false;
  #isHeld = false; // whether the top video stands at its end only because a swap keeps it from starting over
  #rewind = null; // what calls off playing backwards
  #job = new AbortController(); // aborts the work that is under way for a job

  /** `onSwap` is called with a version once it is on top, and `onChange` when the one on top plays, stops or moves. */
  constructor([top, under], onSwap, onChange) {
    [this.#top, this.#under, this.#onSwap] = [top, under, onSwap];
    for (const video of [top, under]) {
      const report = () => { if (video === this.#top && this.hasVideo) onChange(); };
      for (const name of EVENTS) video.addEventListener(name, report);
      const watchFrame = () => video.requestVideoFrameCallback(() => { report(); watchFrame(); });
      watchFrame(); // is called for each frame that is shown, so a video that stands still costs nothing
    }
  }

  get hasVideo() { return this.#shown !== null; }

  /** The seconds of the whole video that come before the version on top. */
  get hidden() { return this.#shown?.hidden ?? 0; }

  get frame() { return 1 / this.#shown.fps; }

  get length() { return this.#top.duration || 0; }

  get at() { return Math.min(this.#top.currentTime, this.length); }

  get shown() { return this.#top; }

  get isPlaying() { return !this.#top.paused || (this.#isHeld && isOver(this.#top)); }

  toggle() {
    if (this.#stopRewind()) return;
    if (this.isPlaying) {
      this.#isHeld = false;
      this.#top.pause();
      return;
    }
    if (isOver(this.#top)) this.#top.currentTime = 0;
    begin(this.#top);
  }

  /** Play backwards as fast as forwards, with as many frames as seeking allows. */
  rewind() {
    if (this.isPlaying) this.toggle();
    this.#stopRewind();
    const running = this.#rewind = new AbortController();
    const [began, from] = [performance.now(), this.at];
    const step = () => {
      if (running.signal.aborted) return;
      this.#seek(from - (this.#top.playbackRate * (performance.now() - began)) / 1000);
      if (this.at > 0) this.#top.addEventListener('seeked', () => requestAnimationFrame(step), { once: true });
    };
    step();
  }

  #stopRewind() {
    const wasRunning = this.#rewind && this.at > 0;
    this.#rewind?.abort();
    this.#rewind = null;
    return wasRunning;
  }

  set speed(speed) {
    for (const video of [this.#top, this.#under]) video.defaultPlaybackRate = video.playbackRate = speed;
  }

  jump(at) {
    this.#stopRewind();
    this.#seek(at);
  }

  #seek(at) {
    this.#top.currentTime = Math.max(0, Math.min(at, this.length - FRAME / 2));
  }

  loop(loops) {
    this.#loops = loops;
    if (!this.#isSwapping) this.#top.loop = loops;
  }

  clear() {
    this.#stopRewind();
    this.#job.abort();
    this.#job = new AbortController();
    for (const video of [this.#top, this.#under]) {
      video.pause();
      dropVideo(video);
      video.classList.remove('lt-top');
    }
    this.#shown = null;
    this.#wanted = null;
    this.#asked = '';
  }

  /** Bring a version on top as soon as it can be shown, unless a newer one is wanted before that. */
  want(version) {
    if (this.#asked === version.url) return;
    this.#asked = version.url;
    this.#wanted = version;
    if (!this.#isSwapping) this.#swapAll();
  }

  async #swapAll() {
    this.#isSwapping = true;
    while (this.#wanted) {
      const version = this.#wanted;
      const calledOff = this.#job.signal;
      this.#wanted = null;
      try {
        await this.#swap(version, calledOff);
      } catch (error) {
        // A newer version has replaced it, or the connection was lost. If it is still wanted, the next scene asks again.
        console.info('video:', error.message);
        if (!calledOff.aborted) setTimeout(() => { if (this.#asked === version.url) this.#asked = ''; }, RETRY_AFTER);
      }
      this.#top.loop = this.#loops;
      if (this.#isHeld && this.#top.ended && this.#loops && this.hasVideo) begin(this.#top);
      this.#isHeld = false;
    }
    this.#isSwapping = false;
  }

  async #swap(version, calledOff) {
    const follows = this.hasVideo;
    await load(this.#under, version.url, calledOff);
    if (follows) {
      this.#isHeld = true;
      this.#top.loop = false;
      await this.#align(version.front - this.#shown.front, calledOff);
    }
    calledOff.throwIfAborted();
    const plays = follows ? this.isPlaying : version.autoplay && !reducedMotion.matches;
    for (const name of ['volume', 'muted', 'playbackRate']) this.#under[name] = this.#top[name];
    this.#under.loop = this.#loops;
    this.#bring(version);
    if (plays) begin(this.#top);
  }

  // Brings the lower video to the upper one's time, or, while that one plays, to a time at which it will be a moment after
  // the seek, which may take longer than thought. `added` is the length that the new version has in front.
  async #align(added, calledOff) {
    const [top, under] = [this.#top, this.#under];
    const goal = () => top.currentTime + added;
    const isMoving = () => !top.paused && !isOver(top);
    for (let lead = SHORTEST_LEAD; lead < LONGEST_LEAD; lead *= 2) {
      const reach = Math.min(goal() + (isMoving() ? lead : 0), top.duration + added, under.duration - FRAME / 2);
      await seekTo(under, Math.max(0, reach), calledOff);
      const isAhead = () => goal() < under.currentTime - FRAME / 2 && goal() > under.currentTime - 2 * lead;
      const deadline = performance.now() + 1000 + 2000 * lead;
      while (isMoving() && isAhead() && performance.now() < deadline) {
        await wait(8);
        calledOff.throwIfAborted();
      }
      if (Math.abs(goal() - under.currentTime) < CLOSE_ENOUGH || (this.#isHeld && isOver(top))) return;
    }
  }

  #bring(version) {
    [this.#top, this.#under] = [this.#under, this.#top];
    this.#shown = version;
    this.#top.classList.add('lt-top');
    this.#top.removeAttribute('aria-hidden');
    this.#top.setAttribute('aria-label', 'The video so far');
    this.#under.classList.remove('lt-top');
    this.#under.setAttribute('aria-hidden', 'true');
    this.#under.pause();
    this.#onSwap(version);
  }
}

export class Player {
  #stage;
  #parts;
  #videos;
  #onTime;
  #job = null;
  #poster = null; // the picture that it shows without a video
  #loops = null; // whether the user wants the video to loop; null without a wish

  constructor(stage, onTime) {
    const find = (selector) => stage.querySelector(selector);
    this.#stage = stage;
    this.#onTime = onTime;
    const names = ['bar', 'play', 'time', 'seek', 'poster', 'fit', 'full', 'loop', 'speed'];
    this.#parts = Object.fromEntries(names.map((name) => [name, find(`.lt-${name}`)]));
    const videos = stage.querySelectorAll('video');
    this.#videos = new Videos(videos, (version) => this.#swapped(version), () => this.#update());
    this.#listen();
  }

  #listen() {
    const { play, full, fit, seek, loop, speed } = this.#parts;
    loop.addEventListener('click', () => {
      this.#loops = loop.getAttribute('aria-pressed') !== 'true';
      this.#setLoop(this.#loops);
      if (this.#loops && !this.#videos.isPlaying) this.#toggle();
    });
    setOptions(speed, SPEEDS.map((times) => [times, `${times}×`]));
    speed.value = 1;
    speed.addEventListener('change', () => { this.#videos.speed = Number(speed.value); });
    play.addEventListener('click', () => this.#toggle());
    fit.addEventListener('click', () => this.#toggle());
    full.addEventListener('click', () => this.#fullScreen());
    seek.addEventListener('input', () => this.jump(Number(seek.value)));
    this.#stage.addEventListener('keydown', (event) => this.#takeKey(event));
    document.addEventListener('fullscreenchange', () => {
      full.ariaLabel = document.fullscreenElement ? 'Leave full screen' : 'Full screen';
    });
  }

  show(scene) {
    if (scene.job !== this.#job) {
      this.#job = scene.job;
      this.#clear(scene.poster);
      this.#poster = scene.poster;
    }
    if (this.#loops === null) this.#setLoop(scene.plays && !reducedMotion.matches);
    if (scene.poster !== this.#poster && scene.video?.isPicture) this.#clear(this.#poster = scene.poster);
    if (!scene.video || scene.video.isPicture) return;
    const { url, front, hidden, fps } = scene.video;
    this.#videos.want({ url, front, hidden, fps, autoplay: scene.plays });
  }

  /** The time of the frame that is shown, in seconds of what can be watched. */
  get at() { return this.#videos.at; }

  frame() {
    const { shown, hasVideo } = this.#videos;
    const { poster } = this.#parts;
    return asPng(hasVideo ? drawn(shown, shown.videoWidth, shown.videoHeight) : drawn(poster, poster.naturalWidth, poster.naturalHeight));
  }

  #setLoop(loops) {
    this.#videos.loop(loops);
    this.#parts.loop.setAttribute('aria-pressed', String(loops));
  }

  /** Jump to a time in seconds in the whole video, or to the beginning of what there is of it. */
  jumpTo(whole) { this.jump(whole - this.#videos.hidden); }

  jump(at) {
    if (!this.#videos.hasVideo) return;
    this.#videos.jump(at);
    this.#update();
  }

  #clear(picture) {
    const { bar, poster } = this.#parts;
    this.#videos.clear();
    bar.hidden = true;
    poster.hidden = !picture;
    if (picture) poster.src = picture;
    else poster.removeAttribute('src');
    Object.assign(this.#stage.dataset, { swaps: 0, url: '', state: picture ? 'picture' : 'empty' });
  }

  #swapped(version) {
    const { dataset } = this.#stage;
    Object.assign(dataset, { state: 'video', url: version.url, swaps: Number(dataset.swaps || 0) + 1 });
    this.#parts.bar.hidden = false;
    this.#update();
  }

  #update() {
    const { time, seek, play } = this.#parts;
    const { at, length, isPlaying } = this.#videos;
    const [now, whole] = [at.toFixed(1), length.toFixed(1)];
    setText(time, `${now} / ${whole} s`);
    seek.setAttribute('aria-valuetext', `${now} of ${whole} seconds`);
    if (Number(seek.max) !== length) seek.max = length || 1;
    seek.value = at;
    seek.style.setProperty('--share', length ? `${(100 * at) / length}%` : '0%');
    if (this.#stage.dataset.playing !== String(isPlaying)) {
      this.#stage.dataset.playing = isPlaying;
      play.setAttribute('aria-label', isPlaying ? 'Pause' : 'Play');
      play.title = isPlaying ? 'Pause (space)' : 'Play (space)';
    }
    this.#onTime(at + this.#videos.hidden);
  }

  #toggle() {
    if (this.#videos.hasVideo) this.#videos.toggle();
  }

  // A further press while it plays makes it faster.
  #forward() {
    if (!this.#videos.isPlaying) {
      this.#toggle();
      if (!this.#videos.isPlaying) this.#toggle(); // it was played backwards
      return;
    }
    const { speed } = this.#parts;
    speed.selectedIndex = Math.min(speed.selectedIndex + 1, SPEEDS.length - 1);
    this.#videos.speed = Number(speed.value);
  }

  #fullScreen() {
    if (document.fullscreenElement) document.exitFullscreen();
    else this.#stage.requestFullscreen?.().catch(() => {});
  }

  #takeKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.#videos.hasVideo) return;
    if (event.target.tagName === 'SELECT') return;
    const inButton = event.target.tagName === 'BUTTON';
    const move = (seconds) => () => this.jump(this.#videos.at + seconds);
    const action = {
      ' ': inButton ? null : () => this.#toggle(),
      j: () => this.#videos.rewind(),
      k: () => this.#toggle(),
      l: () => this.#forward(),
      f: () => this.#fullScreen(),
      ArrowLeft: move(-1),
      ArrowRight: move(1),
      ',': move(-this.#videos.frame),
      '.': move(this.#videos.frame),
      Home: () => this.jump(0),
      End: () => this.jump(Infinity),
    }[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }
}
