//! Options that name quantized tensors, the same in every command that reads them.

use ulplab_checkpoint::packed::Naming;

/// Options that define how to find quantized tensors in a file, and their format.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct NamingArgs {
    /// Format: a name from `ulplab list formats`, or a format string [default: from the file's metadata, or else from names,
    /// types and shapes by the conventions of docs/quantized-files.md].
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<String>,
    /// Rule that picks the scales, from the format's table in docs/formats.md, e.g. te or transformer_engine [default: the
    /// first rule of the table; if a name defines the meaning of an NVFP4 global scale: modelopt for `w_scale_2`, vllm for
    /// `w_global_scale`, torchao for `w.per_tensor_scale`].
    #[arg(long, value_name = "RULE")]
    pub rule: Option<String>,
    /// Name of the tensor of codes; needed only if its suffix is not recognised.
    #[arg(long, value_name = "NAME")]
    pub data: Option<String>,
    /// Name of the tensor of scales.
    #[arg(long, value_name = "NAME", requires = "data")]
    pub scale: Option<String>,
    /// Name of the tensor of global scales.
    #[arg(long, value_name = "NAME", requires = "data")]
    pub global: Option<String>,
    /// Layout of the scales, e.g. blocked_128x4 [default: from the file's metadata, or else row-major].
    #[arg(long, value_name = "LAYOUT")]
    pub layout: Option<String>,
}

impl NamingArgs {
    /// An option that is given, without its dashes.
    pub fn given(&self) -> Option<&'static str> {
        let options = [
            ("format", &self.format),
            ("rule", &self.rule),
            ("data", &self.data),
            ("scale", &self.scale),
            ("global", &self.global),
            ("layout", &self.layout),
        ];
        let given = options.into_iter().find(|(_, value)| value.is_some());
        given.map(|(flag, _)| flag)
    }

    /// The options as a [`Naming`].
    pub fn naming(&self) -> Naming {
        let given = self.clone();
        Naming {
            format: given.format,
            rule: given.rule,
            data: given.data,
            scale: given.scale,
            global: given.global,
            layout: given.layout,
        }
    }
}
