// The Queue tab.

/** Bring the panel to life. */
export default function startQueue() {}
