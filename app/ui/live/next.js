// The announcement beside a finished video: the video that is made meanwhile, with a button that shows it.
import { setText } from '../elements.js';
import { about } from '../text.js';

const MOST_PROMPT = 120; // characters

/** Return a prompt in one line of bounded length. */
function short(prompt) {
  const words = prompt.trim().replace(/\s+/g, ' ') || 'a video without a prompt';
  return words.length > MOST_PROMPT ? `${words.slice(0, MOST_PROMPT)}…` : words;
}

/** Return what happens in a scene, in a few words. */
function progress({ announcement, left }) {
  return [announcement.now, left === null ? '' : `${about(left)} left`].filter(Boolean).join(', ');
}

/** Return the sentence that announces the following job to screen readers. */
export const nextWords = ({ announcement, prompt }) => `${announcement.kind}: ${short(prompt)}.`;

/** The announcement. */
export class Next {
  #box;

  /** `follow` is called when the user wants to see what is announced. */
  constructor(box, follow) {
    this.#box = box;
    box.querySelector('button').addEventListener('click', follow);
  }

  /** Announce a scene, or nothing. */
  show(scene) {
    this.#box.hidden = !scene;
    if (!scene) return;
    const { kind, label } = scene.announcement;
    const find = (selector) => this.#box.querySelector(selector);
    this.#box.dataset.job = scene.job;
    this.#box.dataset.state = scene.state;
    setText(find('.lt-next-kind'), kind);
    setText(find('.lt-next-prompt'), short(scene.prompt));
    setText(find('.lt-next-now'), progress(scene));
    find('i').style.transform = `scaleX(${(scene.isRunning ? scene.percent : 0) / 100})`;
    setText(find('button'), label);
    find('button').setAttribute('aria-label', `${label}: ${short(scene.prompt)}`);
  }
}
