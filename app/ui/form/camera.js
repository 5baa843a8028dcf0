// The camera, which takes a picture for the form.
import { make } from '../elements.js';

/** Let the user take a picture, and return it as a file, or null if there is none. */
export async function photograph() {
  const stream = await navigator.mediaDevices.getUserMedia({ video: true }).catch(() => null);
  if (!stream) throw new Error('The browser has no camera that this page may use. Allow it, or choose a file.');
  const video = make('video', { srcObject: stream, autoplay: true, muted: true, playsInline: true });
  const [snap, leave] = ['Take the picture', 'Cancel'].map((textContent) => make('button', { type: 'button', textContent }));
  snap.className = 'lt-main-button';
  const dialog = make('dialog', { className: 'lt-dialog', ariaLabel: 'Camera' }, video, make('div', { className: 'lt-preset-ends' }, snap, leave));
  document.body.append(dialog);
  dialog.showModal();
  const isTaken = await new Promise((done) => {
    snap.addEventListener('click', () => done(video.videoWidth > 0));
    leave.addEventListener('click', () => done(false));
    dialog.addEventListener('close', () => done(false));
  });
  const canvas = make('canvas', { width: video.videoWidth, height: video.videoHeight });
  if (isTaken) canvas.getContext('2d').drawImage(video, 0, 0);
  for (const track of stream.getTracks()) track.stop();
  dialog.remove();
  const blob = isTaken && await new Promise((done) => { canvas.toBlob(done, 'image/png'); });
  return blob ? new File([blob], 'camera.png', { type: 'image/png' }) : null;
}
