// The start of the page, whose document is complete when this runs.
import startForm from './form/form.js';
import startHistory from './history/history.js';
import startLanguage from './language.js';
import startCompare from './live/compare.js';
import startLive from './live/live.js';
import startModels from './models/models.js';
import startQueue from './queue/queue.js';
import startTabs from './tabs.js';

startLanguage();
startTabs(document.querySelector('.lt-tabs'));
startQueue();
startHistory();
startModels();
startForm();
startCompare();
startLive();
