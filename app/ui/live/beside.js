// What leads to the stage from beside it: the line of progress above the buttons, for windows in which the stage may be
// out of view, the announcement of a video that is made meanwhile, and the notification at the end of a video.
import { setText } from '../elements.js';
import { keep, recall } from '../storage.js';

const MOST_PROMPT = 120; // characters of the prompt in a notification
const narrow = window.matchMedia('(max-width: 900px)'); // then the stage is not beside the form

/** Bring the stage into view, if it may be out of it. */
export function bringStage() {
  if (narrow.matches) document.querySelector('.lt-stage')?.scrollIntoView({ block: 'start' });
}

/**
 * Return a function that shows on the line what the card of a view shows of a scene, or, after a word such as "Next",
 * the headline of another job. A press on the line brings the stage into view.
 */
export function prepareLine(view) {
  const line = document.querySelector('.lt-line'); // the card says the same to screen readers
  const [words, bar] = line.children;
  line.addEventListener('click', bringStage);
  // While the stage is in sight, the window keeps it in its place, and not the form that comes after it.
  new IntersectionObserver(([stage]) => {
    document.documentElement.dataset.stage = stage.isIntersecting ? 'seen' : 'away';
  }).observe(view.querySelector('.lt-stage'));
  return ({ isOpen, percent, headline: other }, word = '') => {
    line.hidden = !narrow.matches || !isOpen;
    if (line.hidden) {
      words.textContent = '';
      return;
    }
    const [headline, times] = ['.lt-headline', '.lt-eta'].map((part) => view.querySelector(part).textContent);
    const parts = word ? [`${word}: ${other}`] : [headline, times.split(' · ')[0]];
    setText(words, parts.filter(Boolean).join(' · '));
    bar.style.transform = `scaleX(${percent / 100})`;
  };
}

/** Announce a scene in a box, whose button leads to it; null for none. */
export function announce(box, scene) {
  box.hidden = !scene;
  if (!scene) return;
  const { kind, prompt, now, label } = scene.announcement;
  const find = (selector) => box.querySelector(selector);
  Object.assign(box.dataset, { job: scene.job, state: scene.state });
  setText(find('.lt-next-kind'), kind);
  setText(find('.lt-next-prompt'), prompt);
  setText(find('.lt-next-now'), now);
  find('i').style.transform = `scaleX(${(scene.isRunning ? scene.percent : 0) / 100})`;
  setText(find('button'), label);
  find('button').ariaLabel = `${label}: ${prompt}`;
}

const canNotify = () => 'Notification' in window && window.isSecureContext;
const isOn = () => recall('notify') === 'yes' && Notification.permission === 'granted';

/** Show or hide the button that asks for a notification. */
export function showNotify(button, isOpen) {
  button.hidden = !canNotify() || !isOpen;
  if (button.hidden) return;
  button.setAttribute('aria-pressed', String(isOn()));
  const label = isOn() ? 'You will be notified' : 'Notify me when done';
  button.textContent = Notification.permission === 'denied' ? 'Notifications are blocked in the browser' : label;
}

/** Let the button turn notifications on and off. */
export function prepareNotify(button) {
  button.addEventListener('click', async () => {
    const wasOn = button.getAttribute('aria-pressed') === 'true';
    if (!wasOn && Notification.permission === 'default') await Notification.requestPermission();
    keep('notify', wasOn ? 'no' : 'yes');
    showNotify(button, true);
  });
}

/** Notify the user, if that was asked for. */
export function notify(title, prompt, job) {
  if (!canNotify() || !isOn()) return;
  const note = new Notification(title, { body: prompt.slice(0, MOST_PROMPT), tag: job });
  note.onclick = () => {
    window.focus();
    note.close();
  };
}
