// The notification at the end of a job, for those who asked for one.
import { keep, recall } from '../storage.js';

const MOST_PROMPT = 120; // characters of the prompt in a notification

const canNotify = () => 'Notification' in window && window.isSecureContext;
const isOn = () => recall('notify') === 'yes' && Notification.permission === 'granted';

function label() {
  if (Notification.permission === 'denied') return 'Notifications are blocked in the browser';
  return isOn() ? 'You will be notified' : 'Notify me when done';
}

/** Show or hide the button that asks for a notification. */
export function showNotify(button, isOpen) {
  button.hidden = !canNotify() || !isOpen;
  if (button.hidden) return;
  button.setAttribute('aria-pressed', String(isOn()));
  button.textContent = label();
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
