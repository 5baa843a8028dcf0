// The times, which advance between two updates, and the signs of life of the engine and the connection.
import { noteBack, sayLost } from '../calls/call.js';
import { setText } from '../elements.js';
import { duration } from '../text.js';
import { connect } from './updates.js';

const LOST_AFTER = 5500; // milliseconds without an update; the server sends one every 2.5 seconds at least
const RETRY_EVERY = 10000; // a broken connection is noticed at once; this is for one that only hangs
const GRACE = 10000; // for the very first update, which waits for the page to be set up
const JUST_NOW = 1.5; // seconds
const NEARLY_DONE = 95; // percent
const LATE = 5; // seconds

/** Return the text of the line about the time of a running job, `since` seconds after the update. */
function timeText(scene, since, isLost) {
  if (isLost) return `${duration(scene.elapsed)} so far, when it was last heard of`;
  const soFar = `${duration(scene.elapsed + since)} so far`;
  if (scene.left === null) return soFar;
  const left = scene.left - since;
  if (left >= 1) return `${scene.isGuess ? 'a guess:' : 'about'} ${duration(left)} left · ${soFar}`;
  if (scene.percent >= NEARLY_DONE) return `nearly done · ${soFar}`;
  return left < -LATE ? `longer than expected · ${soFar}` : soFar;
}

// The page cannot distinguish a broken connection from a server that has ended.
function lostWords({ isOpen }) {
  const video = isOpen ? ' If the server has ended, the video continues once it runs again.' : '';
  return `This page reconnects by itself.${video}`;
}

/** Return the kind and the text of the sign of life, `since` seconds after the update. */
function signOfLife(scene, since, isLost) {
  if (isLost) return ['lost', 'This was the last that was heard of the video.'];
  if (!scene.isRunning) return ['none', ''];
  const quiet = scene.quiet + since;
  if (quiet > scene.calm) return ['quiet', `No sign of life for ${duration(quiet)}: ${scene.usual}.`];
  return ['alive', `Last sign of life ${quiet < JUST_NOW ? 'just now' : `${duration(quiet)} ago`}.`];
}

/** The line about time and the line about signs of life. */
export class Pulse {
  #view;
  #scene = {};
  #received = performance.now() + GRACE;
  #retried = 0;
  #sign = null;

  constructor(view) {
    this.#view = view;
  }

  /** Receive an update from the server. */
  receive(scene) {
    this.#scene = scene;
    this.#received = performance.now();
    noteBack();
    if (scene.job && scene.sign !== this.#sign) this.#beat(scene.sign);
    this.tick();
  }

  /** Advance the times, which stand still while the connection is lost. Return whether it is. */
  tick() {
    const waited = Math.max(0, performance.now() - this.#received);
    const isLost = waited > LOST_AFTER;
    const [kind, words] = signOfLife(this.#scene, waited / 1000, isLost);
    this.#find('.lt-pulse').dataset.kind = kind;
    setText(this.#find('.lt-pulse-text'), words);
    if (this.#scene.isRunning) setText(this.#find('.lt-eta'), timeText(this.#scene, waited / 1000, isLost));
    sayLost(isLost ? lostWords(this.#scene) : '');
    if (isLost) this.#retry();
    return isLost;
  }

  #find(selector) {
    return this.#view.querySelector(selector);
  }

  #beat(sign) {
    this.#sign = sign;
    const dot = this.#find('.lt-dot').classList;
    dot.toggle('lt-beat-b', !dot.toggle('lt-beat-a'));
  }

  #retry() {
    if (performance.now() - this.#retried < RETRY_EVERY) return;
    this.#retried = performance.now();
    connect();
  }
}
