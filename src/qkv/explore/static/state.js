// The state of a room is its address, so that it can be shared, stored and reached by "back".

export class State {
  // `defaults` name all fields and their types; fields at their default are left out.
  constructor(room, defaults, changed) {
    Object.assign(this, { room, defaults, changed, past: [] });
    this.values = this.read();
  }

  read() {
    const parameters = new URLSearchParams(location.search);
    return Object.fromEntries(Object.entries(this.defaults).map(([name, usual]) => {
      const text = parameters.get(name);
      if (text === null) return [name, usual];
      if (typeof usual === "number") return [name, Number.isFinite(Number(text)) && text !== "" ? Number(text) : usual];
      return [name, text];
    }));
  }

  address(values = this.values) {
    const parameters = new URLSearchParams();
    for (const [name, usual] of Object.entries(this.defaults)) {
      if (values[name] !== usual) parameters.set(name, String(values[name]));
    }
    const step = new URLSearchParams(location.search).get("tour");
    if (step) parameters.set("tour", step);
    const text = parameters.toString();
    return `/${this.room}${text ? `?${text}` : ""}`;
  }

  // A change by hand. While something is dragged the address follows, and becomes a place in the
  // history only when the hand lets go.
  set(patch, { settled = true } = {}) {
    const before = { ...this.values };
    this.dragged ??= before;
    Object.assign(this.values, patch);
    if (settled) {
      const address = this.address();
      if (address !== this.address(this.dragged)) {
        this.past.push(this.dragged);
        history.replaceState(null, "", this.address(this.dragged));
        history.pushState(null, "", address);
      }
      this.dragged = null;
    } else this.#follow();
    this.changed(before);
  }

  // Browsers allow only so many changes of the address in a second.
  #follow() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => { if (this.dragged) history.replaceState(null, "", this.address()); }, 120);
  }

  undo() {
    const before = this.past.pop();
    if (!before) return false;
    const now = { ...this.values };
    this.values = before;
    history.pushState(null, "", this.address());
    this.changed(now);
    return true;
  }
}
