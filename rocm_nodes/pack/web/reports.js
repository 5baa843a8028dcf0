// Gives each node that has reported something a button that shows the whole report.
import { app } from "../../scripts/app.js"

const WIDGET = "report"

function show(text) {
  const words = document.createElement("pre")
  words.className = "longtake-report"
  words.style.cssText = "white-space: pre-wrap; max-width: 60em; text-align: left"
  words.textContent = text
  app.ui.dialog.show(words)
}

app.registerExtension({
  name: "longtake.reports",
  beforeRegisterNodeDef(kind, facts) {
    if (!facts.category?.startsWith("ROCm Ninodes/")) return
    const before = kind.prototype.onExecuted
    kind.prototype.onExecuted = function (output) {
      before?.apply(this, arguments)
      if (!output?.text?.length) return
      this.longtakeReport = output.text.join("\n")
      if (this.widgets?.some((widget) => widget.name === WIDGET)) return
      const button = this.addWidget("button", WIDGET, null, () => show(this.longtakeReport))
      button.label = "whole report"
      button.serialize = false // neither a saved workflow nor a prompt has it
      button.options.serialize = false
    }
  },
})
