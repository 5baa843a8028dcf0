// Durations and times as text, for the page's scripts. Sizes in bytes come from the server as text.

const language = document.documentElement.lang;
const locale = language === 'en' ? 'en-GB' : language;
const TIME = new Intl.DateTimeFormat(locale, { hour: '2-digit', minute: '2-digit' });
const EXACT = new Intl.DateTimeFormat(locale, { dateStyle: 'medium', timeStyle: 'medium' });
const DAY = new Intl.DateTimeFormat(locale, { day: 'numeric', month: 'short', year: 'numeric' });
const NEAR = new Intl.RelativeTimeFormat(locale, { numeric: 'auto' }); // "today" and "yesterday"
const A_DAY = 86400000; // milliseconds

export function dayOf(seconds) {
  const date = new Date(1000 * seconds);
  const midnight = new Date().setHours(0, 0, 0, 0);
  const isOn = (days) => date >= midnight - days * A_DAY && date < midnight - (days - 1) * A_DAY;
  const days = [0, 1].find(isOn);
  return days === undefined ? DAY.format(date) : NEAR.format(-days, 'day').replace(/^./, (letter) => letter.toUpperCase());
}

export const clock = (seconds) => TIME.format(new Date(1000 * seconds));

export const exactly = (seconds) => EXACT.format(new Date(1000 * seconds));

/** A duration such as `7 s`, `2 min 5 s` or `1 h 40 min`, in whole seconds, since it ticks while it is read. */
export function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  const minutes = Math.floor(whole / 60);
  if (minutes >= 60) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return minutes ? `${minutes} min ${whole % 60} s` : `${whole} s`;
}
