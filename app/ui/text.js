// The words for figures in the page's scripts. Bytes come from the server as text.

/** Return a duration such as `7 s`, `2 min 5 s` or `1 h 40 min`, in whole seconds, since it ticks while it is read. */
export function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  const minutes = Math.floor(whole / 60);
  if (minutes >= 60) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return minutes ? `${minutes} min ${whole % 60} s` : `${whole} s`;
}
