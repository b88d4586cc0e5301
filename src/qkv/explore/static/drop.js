// A place where files are dropped, or chosen with the keyboard.

import { h, fresh } from "./dom.js";
import { upload } from "./ask.js";

const MOST = 8 * 2 ** 20;

export function dropPlace(shell, words, taken) {
  const id = fresh("file");
  const status = h("span", { className: "note", role: "status" });
  const input = h("input", { type: "file", id, accept: ".csv,.tsv,.txt,.parquet", change: () => input.files[0] && take(input.files[0]) });
  const place = h("div", { className: "drop" }, h("label", { htmlFor: id }, words), input, status);

  async function take(file) {
    if (file.size > MOST) {
      shell.refuse(`the file ${file.name} has ${(file.size / 2 ** 20).toFixed(1)} MB, and up to 8 MB are taken here: qkv explore --open takes larger files`);
      return;
    }
    status.textContent = `Reading ${file.name} …`;
    try {
      const { source } = await upload(file);
      status.textContent = `${file.name} is here.`;
      await taken(source, file.name);
    } catch (error) {
      status.textContent = "";
      shell.refuse(error.message);
    }
    input.value = "";
  }

  place.addEventListener("dragover", (event) => { event.preventDefault(); place.classList.add("over"); });
  place.addEventListener("dragleave", () => place.classList.remove("over"));
  place.addEventListener("drop", (event) => {
    event.preventDefault();
    place.classList.remove("over");
    if (event.dataTransfer.files[0]) take(event.dataTransfer.files[0]);
  });
  return place;
}
