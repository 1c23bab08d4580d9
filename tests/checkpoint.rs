//! Quantized checkpoints: what is right gives no finding, and a planted fault is named on its tensor. A test of `ulplab-checkpoint`, which
//! needs nothing of the program.

#[path = "checkpoint/against.rs"]
mod against;
#[path = "checkpoint/docs.rs"]
mod docs;
#[path = "checkpoint/drafts.rs"]
mod drafts;
#[path = "checkpoint/faults.rs"]
mod faults;
#[path = "checkpoint/folded.rs"]
mod folded;
#[path = "checkpoint/form.rs"]
mod form;
#[path = "checkpoint/forms.rs"]
mod forms;
#[path = "checkpoint/forms_of_words.rs"]
mod forms_of_words;
#[path = "checkpoint/lost.rs"]
mod lost;
#[path = "checkpoint/made.rs"]
mod made;
#[path = "checkpoint/methods.rs"]
mod methods;
#[path = "checkpoint/modules.rs"]
mod modules;
#[path = "checkpoint/nonfinite.rs"]
mod nonfinite;
#[path = "checkpoint/packings.rs"]
mod packings;
#[path = "checkpoint/place.rs"]
mod place;
#[path = "checkpoint/promises.rs"]
mod promises;
#[path = "checkpoint/sources.rs"]
mod sources;
#[path = "checkpoint/stacks.rs"]
mod stacks;
#[path = "checkpoint/whole.rs"]
mod whole;
#[path = "checkpoint/words.rs"]
mod words;
