"""The guided tour: ten steps through the rooms, in the order of the source texts."""

from __future__ import annotations

from urllib.parse import urlencode


def _step(title: str, text: str, room: str, /, **state: object) -> dict[str, str]:
    return {"title": title, "text": text, "room": room, "state": urlencode(state)}


_STEPS = [
    _step(
        "A database",
        "Keys and values: ask for a name, and the row with exactly that name answers. "
        "Attention begins as a look-up like this one.",
        "table", source="students", key="name", value="major", similarity="equal",
        bandwidth="", query="John Doe",
    ),
    _step(
        "A soft question",
        "No row has exactly the grade you ask for? Let every row answer, weighted by how near its "
        "key is (Eq. 2). The answer is a weighted mean, with an interval.",
        "table", query="3.475", bandwidth="0.1",
    ),
    _step(
        "Pooling",
        "Nadaraya and Watson did this in 1964: a curve through points is attention over them "
        "(Eq. 4). Move the query and watch the weights.",
        "pooling", query="1.2",
    ),
    _step(
        "Kernels",
        "How fast do weights fall with distance? Each kernel of Eq. 5 is one answer. The boxcar "
        "weights all points in a window equally, and its curve is a step function.",
        "pooling", kernel="boxcar", bandwidth="0.5", query="1.2",
    ),
    _step(
        "Bandwidth",
        "Wide enough, and every point weighs the same: the plain mean. Narrow it down to a hard "
        "look-up, then let leave-one-out choose.",
        "pooling", bandwidth="20", query="3",
    ),
    _step(
        "From distance to dot product",
        "−‖q − k‖² is 2 qᵀk less two norms (Eq. 6): for keys of one length, near means a large dot "
        "product. Compare the two surfaces.",
        "similarity", left="euclidean", right="dot",
    ),
    _step(
        "Scale and temperature",
        "Dot products grow with the dimension, and a softmax of large numbers is a hard choice. "
        "Dividing by √d (Eq. 8) keeps it soft; temperature does the same by hand.",
        "similarity", left="dot", right="scaled_dot", temperature="0.35",
    ),
    _step(
        "Learned similarities, and masks",
        "Additive attention learns the similarity with a small network (Eq. 12). The mask says "
        "which keys a query may attend to: here only itself and earlier ones.",
        "similarity", left="additive", right="bilinear", mask="causal",
    ),
    _step(
        "Many heads",
        "A single head captures a single relation. A transformer has many heads in many layers, "
        "each with its own projections: find the one that attends to the next word.",
        "sentence", model="minilm", layer="0", head="2", row="8",
    ),
    _step(
        "Translation",
        "Bahdanau's translator need not compress a sentence into one vector: at every letter it "
        "attends to the source (Eq. 13), and the alignment shows where.",
        "translate", text="Donnerstag, 14. März 2024", step="6",
    ),
]  # fmt: skip

#: What the page is given: each step's title, text and address.
STEPS = [
    {
        "title": step["title"],
        "text": step["text"],
        "address": f"/{step['room']}?{step['state']}&tour={number}",
    }
    for number, step in enumerate(_STEPS, start=1)
]
