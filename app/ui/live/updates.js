// The stream of updates from the server, which begins again whenever it ends.

const AGAIN = 3000; // milliseconds
const own = new URL(import.meta.url).pathname.split('/').at(-3); // the version of the scripts

let source = null;
let chosen = ''; // the job whose updates a user wants, as long as it runs
let take = () => {};

// A server that was started again may ask for the password first.
async function open() {
  const asking = new AbortController();
  const { status } = await fetch('live', { signal: asking.signal }).catch(() => ({}));
  asking.abort();
  if (status === 401) window.location.reload();
  connect();
}

/** Connect again, for the updates of a running job if one is named. */
export function connect(job = chosen) {
  chosen = job;
  source?.close();
  const now = source = new EventSource(job ? `live?job=${encodeURIComponent(job)}` : 'live');
  source.onmessage = ({ data }) => {
    const news = JSON.parse(data);
    if (news.version && news.version !== own) window.location.reload(); // these scripts are older than the server
    else take(news);
  };
  // The browser itself tries again, unless it got an answer that is no stream.
  source.onerror = () => {
    if (now.readyState === EventSource.CLOSED) setTimeout(() => { if (source === now) open(); }, AGAIN);
  };
}

/** Call the listener with each update. */
export function follow(listener) {
  take = listener;
  connect();
}
