// Hides what is rarely needed of each node, and gives those that have reported something a button for it.
import { app } from "../../scripts/app.js"

const REPORT = "report"
const MORE = "more inputs"

function show(text) {
  const words = document.createElement("pre")
  words.className = "longtake-report"
  words.style.cssText = "white-space: pre-wrap; max-width: 60em; text-align: left; color: var(--input-text)"
  words.textContent = text
  app.ui.dialog.show(words)
}

// Adds a button that neither a saved workflow nor a prompt has.
function addButton(node, name, label, callback) {
  const button = node.addWidget("button", name, null, callback)
  button.label = label
  button.serialize = false
  button.options.serialize = false
  return button
}

// Hides or shows widgets. Versions that hide some by themselves, as options say, do not read these properties.
function fold(node, widgets, isFolded) {
  for (const widget of widgets) {
    const place = node.inputs?.find((one) => one.widget?.name === widget.name)
    widget.hidden = isFolded && (place?.link ?? null) === null
    widget.computeSize = widget.hidden ? () => [0, -4] : undefined // -4 undoes the gap between widgets
  }
}

function addFold(node, names) {
  const widgets = node.widgets?.filter((widget) => names.has(widget.name)) ?? []
  if (widgets.length < 2) return // a button would take the place of one
  let isFolded = true
  const button = addButton(node, MORE, MORE, () => {
    isFolded = !isFolded
    button.label = isFolded ? MORE : "fewer inputs"
    fold(node, widgets, isFolded)
    node.setSize([node.size[0], node.computeSize()[1]])
  })
  button.options.canvasOnly = true // where nodes hide inputs by themselves, they have such a button, too
  fold(node, widgets, isFolded)
  node.setSize([node.size[0], node.computeSize()[1]])
  const before = node.onConfigure
  node.onConfigure = function () {
    before?.apply(this, arguments)
    fold(node, widgets, isFolded) // links come with the workflow
  }
}

app.registerExtension({
  name: "longtake.nodes",
  beforeRegisterNodeDef(kind, facts) {
    if (!facts.category?.startsWith("ROCm Ninodes/")) return
    const inputs = Object.entries({ ...facts.input?.required, ...facts.input?.optional })
    const names = new Set(inputs.filter(([, one]) => one[1]?.advanced).map(([name]) => name))
    const created = kind.prototype.onNodeCreated
    kind.prototype.onNodeCreated = function () {
      created?.apply(this, arguments)
      addFold(this, names)
    }
    const before = kind.prototype.onExecuted
    kind.prototype.onExecuted = function (output) {
      before?.apply(this, arguments)
      if (!output?.text?.length) return
      this.longtakeReport = output.text.join("\n")
      if (this.widgets?.some((widget) => widget.name === REPORT)) return
      addButton(this, REPORT, "whole report", () => show(this.longtakeReport))
    }
  },
})
