// The stage: the video so far, or the start picture, with controls, keys and full screen.
import { reducedMotion, setText } from '../elements.js';
import { Videos } from './videos.js';

/** The player on a stage. */
export class Player {
  #stage;
  #parts;
  #videos;
  #onTime;
  #job = null;
  #loops = null; // whether the user wants the video to loop; null without a wish

  /** `onTime` is called with the time, in the whole video, of the frame that is shown. */
  constructor(stage, onTime) {
    const find = (selector) => stage.querySelector(selector);
    this.#stage = stage;
    this.#onTime = onTime;
    const names = ['bar', 'play', 'time', 'seek', 'poster', 'fit', 'full', 'loop'];
    this.#parts = Object.fromEntries(names.map((name) => [name, find(`.lt-${name}`)]));
    const videos = stage.querySelectorAll('video');
    this.#videos = new Videos(videos, (version) => this.#swapped(version), () => this.#update());
    this.#listen();
  }

  #listen() {
    const { play, full, fit, seek, loop } = this.#parts;
    loop.addEventListener('click', () => {
      this.#loops = loop.getAttribute('aria-pressed') !== 'true';
      this.#setLoop(this.#loops);
      if (this.#loops && !this.#videos.isPlaying) this.#toggle();
    });
    play.addEventListener('click', () => this.#toggle());
    fit.addEventListener('click', () => this.#toggle());
    full.addEventListener('click', () => this.#fullScreen());
    seek.addEventListener('input', () => this.jump(Number(seek.value)));
    this.#stage.addEventListener('keydown', (event) => this.#takeKey(event));
    document.addEventListener('fullscreenchange', () => {
      full.textContent = document.fullscreenElement ? 'Leave full screen' : 'Full screen';
    });
  }

  /** Show the video of a scene's job, or its picture if there is none yet. */
  show(scene) {
    if (scene.job !== this.#job) {
      this.#job = scene.job;
      this.#clear(scene.poster);
      this.#parts.poster.style.objectPosition = `${100 * scene.crop}% ${100 * scene.crop}%`;
    }
    if (this.#loops === null) this.#setLoop(scene.plays && !reducedMotion.matches);
    if (!scene.video) return;
    const { url, front, hidden, fps } = scene.video;
    this.#videos.want({ url, front, hidden, fps, autoplay: scene.plays });
  }

  #setLoop(loops) {
    this.#videos.loop(loops);
    this.#parts.loop.setAttribute('aria-pressed', String(loops));
  }

  /** Jump to a time in seconds in the whole video, or to the beginning of what there is of it. */
  jumpTo(whole) { this.jump(whole - this.#videos.hidden); }

  /** Jump to a time in the video so far, in seconds. */
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

  #fullScreen() {
    if (document.fullscreenElement) document.exitFullscreen();
    else this.#stage.requestFullscreen?.().catch(() => {});
  }

  #takeKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.#videos.hasVideo) return;
    const inButton = event.target.tagName === 'BUTTON';
    const move = (seconds) => () => this.jump(this.#videos.at + seconds);
    const action = {
      ' ': inButton ? null : () => this.#toggle(),
      k: () => this.#toggle(),
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
