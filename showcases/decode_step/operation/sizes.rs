//! Sizes of the model and of a test case, from which the launches of a decode step are planned.

use reference::paths::deepseek_v4::{LayerType, RouterType};

use super::weights::Source;
use super::{EPS, Formats, STREAMS};
use ulplab_core::formats::PAGE;

/// Sizes of a model, in the order of [`Sizes::NAMES`].
pub(super) struct Sizes([i64; 24]);

impl Sizes {
    /// Names of a model's sizes: layers, leading heavy layers, hash-routed layers, vocabulary, hidden size, query rank, heads,
    /// channels of a head, channels that RoPE rotates, output groups, output rank of a group, window, index heads and channels,
    /// selected entries, experts, experts per token, channels of an expert, tokens per entry of sparse and of heavy layers,
    /// numbers of sparse and of heavy layers, channels of all streams, and of all heads.
    const NAMES: [&'static str; 24] = [
        "layers", "lead", "hashes", "V", "C", "Rq", "H", "D", "R", "G", "Ro", "Wn", "HI", "DI", "topk", "E", "K", "I",
        "ms", "mh", "sparse", "heavy", "wide", "HD",
    ];

    /// Sizes of the trained model.
    pub const MODEL: Self = Self([
        61, 3, 3, 256, 64, 48, 2, 512, 64, 2, 32, 64, 4, 128, 32, 4, 2, 48, 4, 128, 29, 32, 256, 1024,
    ]);

    pub fn layers(&self) -> usize {
        self.0[0] as usize
    }

    pub fn of(source: &Source) -> Result<Self, String> {
        let config = &source.config;
        let kinds = &config.layer_types;
        let lead = kinds.iter().take_while(|kind| **kind == LayerType::Heavy).count();
        let turns = [LayerType::Sparse, LayerType::Heavy].iter().cycle();
        let regular = kinds[lead..].iter().zip(turns).all(|(kind, turn)| kind == turn);
        let routers = &config.mlp_layer_types;
        let hashes = routers.iter().take_while(|kind| **kind == RouterType::Hash).count();
        let learned = routers[hashes..].iter().all(|kind| *kind == RouterType::Learned);
        if !regular || !learned {
            return Err(
                "kernels know models that begin with heavy layers, then have sparse and heavy ones in turn, and \
                        whose first layers alone are routed by a table"
                    .into(),
            );
        }
        let (norm, mixing) = (config.rms_norm_eps as f32, config.hc_eps as f32);
        if (config.hc_mult, config.hc_sinkhorn_iters, norm, mixing) != (STREAMS, 20, EPS, EPS) {
            return Err("kernels know 4 streams, 20 Sinkhorn iterations, and 1e-6 as rms_norm_eps and hc_eps".into());
        }
        let (sparse, heavy) = (source.layers(LayerType::Sparse), source.layers(LayerType::Heavy));
        let rate = |layers: &[usize]| layers.first().map_or(Ok(1), |layer| source.rate(*layer));
        let sizes = [
            kinds.len(),
            lead,
            hashes,
            config.vocab_size,
            config.hidden_size,
            config.q_lora_rank,
            config.num_attention_heads,
            config.head_dim,
            config.qk_rope_head_dim,
            config.o_groups,
            config.o_lora_rank,
            config.sliding_window,
            config.index_n_heads,
            config.index_head_dim,
            config.index_topk,
            config.n_routed_experts,
            config.num_experts_per_tok,
            config.moe_intermediate_size,
            rate(&sparse)?,
            rate(&heavy)?,
            sparse.len(),
            heavy.len(),
            STREAMS * config.hidden_size,
            config.num_attention_heads * config.head_dim,
        ];
        Ok(Self(sizes.map(|size| size as i64)))
    }

    /// Returns all sizes of a case. In addition to the model's sizes, these are: rows B, runs S, positions P; the capacities Ns
    /// and Nh of the caches of compressed entries of sparse and of heavy layers; the flags of [`Formats::flags`]; the numbers of
    /// record pages of a row; the bits per weight of dense matrices and of routed experts; and the number of layers with their
    /// own experts.
    ///
    /// # Errors
    /// Returns an error if no kernel supports the formats.
    pub fn dims(&self, counts: [usize; 3], formats: Formats, banks: usize) -> Result<Vec<(&'static str, i64)>, String> {
        let ([rows, runs, positions], [weight_bits, routed_bits]) = (counts, formats.storages()?.bits()?);
        let [records, indexed, eight, sixteen] = formats.flags();
        let model = Self::NAMES.into_iter().zip(self.0);
        let rate = |name: &str| self.0[Self::NAMES.iter().position(|other| *other == name).expect("a size")];
        let positions = positions as i64;
        let (sparse, heavy) = ((positions / rate("ms")).max(1), (positions / rate("mh")).max(1));
        let pages = |slots: i64| (slots.max(1) as usize).div_ceil(PAGE) as i64;
        let others = [
            ("B", rows as i64),
            ("S", runs as i64),
            ("P", positions),
            ("Ns", sparse),
            ("Nh", heavy),
            ("records", records.into()),
            ("indexed", indexed.into()),
            ("eight", eight.into()),
            ("sixteen", sixteen.into()),
            ("window_pages_of_row", pages(rate("Wn"))),
            ("csa_pages_of_row", pages(sparse)),
            ("hca_pages_of_row", pages(heavy)),
            ("weight_bits", weight_bits as i64),
            ("routed_bits", routed_bits as i64),
            ("banks", banks as i64),
        ];
        Ok(model.chain(others).collect())
    }
}
