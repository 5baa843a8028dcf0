// Figures in words, as the scripts of the page write them. Bytes come from the server as text.

const twoDigits = (number) => String(number).padStart(2, '0');

/** Return a duration as `0:07`, `12:30` or `1:02:03`. */
export function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  const hours = Math.floor(whole / 3600);
  const minutes = Math.floor(whole / 60) % 60;
  const rest = twoDigits(whole % 60);
  return hours ? `${hours}:${twoDigits(minutes)}:${rest}` : `${minutes}:${rest}`;
}
