// Shows the newest version of the video. `props.value` is made by app/ui/view.py's player().
const stage = element.querySelector('.lt-stage');
const video = element.querySelector('video');
const still = window.matchMedia('(prefers-reduced-motion: reduce)').matches;
let shown = { job: '', url: '', front: 0 };

function show() {
  const next = props.value || { job: '', url: '', poster: '', front: 0 };
  stage.dataset.state = next.url ? 'video' : next.poster ? 'picture' : 'empty';
  if (next.job !== shown.job) video.poster = next.poster || '';
  if (next.url === shown.url) return;
  const same = next.job === shown.job && shown.url;
  // What was put in front moves the moment that is being watched by as much.
  const at = same ? video.currentTime + next.front - shown.front : 0;
  const paused = same ? video.paused : still;
  shown = next;
  stage.dataset.url = next.url;
  video.controls = Boolean(next.url);
  if (!next.url) {
    video.removeAttribute('src');
    video.load();
    return;
  }
  video.src = next.url;
  video.addEventListener('loadedmetadata', () => {
    video.currentTime = Math.min(at, Math.max(0, video.duration - 0.05));
    if (!paused) video.play().catch(() => {});
  }, { once: true });
}

watch('value', show);
show();
