// Durations as text, for the page's scripts. Sizes in bytes come from the server as text.

/** Return a duration such as `7 s`, `2 min 5 s` or `1 h 40 min`, in whole seconds, since it ticks while it is read. */
export function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  const minutes = Math.floor(whole / 60);
  if (minutes >= 60) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return minutes ? `${minutes} min ${whole % 60} s` : `${whole} s`;
}

/** Return an estimate such as `about 40 s`, `about 3 min` or `about 1 h 20 min`. */
export function about(seconds) {
  if (seconds < 55) return `about ${Math.max(5, 5 * Math.round(seconds / 5))} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `about ${minutes} min`;
  const rest = 5 * Math.round((minutes % 60) / 5);
  const hours = Math.floor(minutes / 60) + (rest === 60 ? 1 : 0);
  return rest % 60 ? `about ${hours} h ${rest} min` : `about ${hours} h`;
}
