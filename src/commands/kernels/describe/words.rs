//! Meanings of the keys of cases, in a few words.

/// Keys, and what they choose; an operation before a dot, if the key means something else there.
const KEYS: [(&str, &str); 26] = [
    ("L", "how an exchange with a bank is made"),
    ("W", "type of the weights"),
    ("direction", "which way it turns"),
    ("dtype", "type of the activations"),
    ("edges", "which edge values the cases with edges have"),
    ("ends", "how long the groups are"),
    ("form", "how the decay is made of its raw gate"),
    ("format", "number format of the codes"),
    ("gate", "one decay for each head (gdn), or for each channel (kda)"),
    ("groups", "what the matrix is cut into groups along"),
    ("index", "record of the indexer's cache"),
    ("kind", "one decay for each head (gdn), or for each channel (kda)"),
    ("layout", "order of the state's dimensions"),
    ("operand", "type of the operands"),
    ("out", "type of the output"),
    ("reads", "which entries are read"),
    ("record", "record of the KV cache"),
    ("record_write.form", "whether the input is normed before it is stored"),
    ("routed", "format of the routed experts' weights"),
    ("routing", "how tokens are spread over the experts"),
    ("select", "what selects the experts"),
    ("sequences", "how long the sequences are"),
    ("state", "type of the state"),
    ("state_transpose.dtype", "type of the state"),
    ("stored", "format of the weights"),
    ("width", "columns of the instruction"),
];

/// The choice that a key of an operation makes.
pub fn of_key(op: &str, key: &str) -> Option<&'static str> {
    let find = |name: &str| KEYS.iter().find(|(key, _)| *key == name).map(|(_, word)| *word);
    find(&format!("{op}.{key}")).or_else(|| find(key))
}
