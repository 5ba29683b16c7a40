// Makes an element equal to another one and keeps what is the same: focus, selection, open menus and scrolling survive.

// Of an open menu: the reader opened it and a script placed it, the server knows nothing of either.
const KEEP = new Set(["open", "style"]);

function sameKind(a, b) {
  return a.nodeType === b.nodeType && a.nodeName === b.nodeName &&
    (a.nodeType !== Node.ELEMENT_NODE || (a.dataset?.key === b.dataset?.key && a.id === b.id));
}

function attributes(from, to) {
  for (const { name, value } of to.attributes) {
    if (from.getAttribute(name) !== value) from.setAttribute(name, value);
  }
  for (const { name } of [...from.attributes]) {
    if (!to.hasAttribute(name) && !KEEP.has(name)) from.removeAttribute(name);
  }
}

export function morph(from, to) {
  if (from.nodeType !== Node.ELEMENT_NODE) {
    if (from.nodeValue !== to.nodeValue) from.nodeValue = to.nodeValue;
    return;
  }
  attributes(from, to);
  if (from.dataset.own !== undefined) return; // a script draws what is in it
  if (from instanceof HTMLInputElement || from instanceof HTMLTextAreaElement) return; // the reader types in it
  const keyed = new Map();
  for (const child of from.children) if (child.dataset?.key) keyed.set(child.dataset.key, child);
  let place = from.firstChild;
  for (const wanted of [...to.childNodes]) {
    const known = wanted.dataset?.key && keyed.get(wanted.dataset.key);
    const match = known ?? (place && sameKind(place, wanted) ? place : null);
    if (match) {
      if (match === place) place = place.nextSibling;
      else from.insertBefore(match, place);
      morph(match, wanted);
    } else {
      from.insertBefore(document.adoptNode(wanted), place);
    }
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}
