// What a room shows is written in its address, so that it can be shared, kept and gone back to.

export class State {
  // `defaults` name what can be told; a number stays a number. What is as by default is left out.
  constructor(room, defaults, changed) {
    Object.assign(this, { room, defaults, changed, past: [] });
    this.values = this.read();
  }

  read() {
    const told = new URLSearchParams(location.search);
    return Object.fromEntries(Object.entries(this.defaults).map(([name, usual]) => {
      const text = told.get(name);
      if (text === null) return [name, usual];
      if (typeof usual === "number") return [name, Number.isFinite(Number(text)) && text !== "" ? Number(text) : usual];
      return [name, text];
    }));
  }

  address(values = this.values) {
    const told = new URLSearchParams();
    for (const [name, usual] of Object.entries(this.defaults)) {
      if (values[name] !== usual) told.set(name, String(values[name]));
    }
    const step = new URLSearchParams(location.search).get("tour");
    if (step) told.set("tour", step);
    const text = told.toString();
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
