//! Options that name quantized tensors, the same in every command that reads them.

use ulplab_core::packed::Naming;

/// Options that say how to find quantized tensors in a file, and what they are.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct NamingArgs {
    /// Format: a name of `ulplab list formats` or a format string [default: what the file says, or what names, types and
    /// shapes say by the conventions of docs/quantized-files.md].
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<String>,
    /// Rule that picks the scales, of the format's table in docs/formats.md, e.g. te or transformer_engine [default: the
    /// first; where names tell what an NVFP4 global scale means, modelopt of `w_scale_2`, vllm of `w_global_scale`, torchao
    /// of `w.per_tensor_scale`].
    #[arg(long, value_name = "RULE")]
    pub rule: Option<String>,
    /// Name of the tensor of codes, where it is not recognised by its ending.
    #[arg(long, value_name = "NAME")]
    pub data: Option<String>,
    /// Name of the tensor of scales.
    #[arg(long, value_name = "NAME", requires = "data")]
    pub scale: Option<String>,
    /// Name of the tensor of global scales.
    #[arg(long, value_name = "NAME", requires = "data")]
    pub global: Option<String>,
    /// Layout of the scales, e.g. blocked_128x4 [default: row-major, or what the file says].
    #[arg(long, value_name = "LAYOUT")]
    pub layout: Option<String>,
}

impl NamingArgs {
    /// What they say.
    pub fn naming(&self) -> Naming {
        let Self {
            format,
            rule,
            data,
            scale,
            global,
            layout,
        } = self.clone();
        Naming {
            format,
            rule,
            data,
            scale,
            global,
            layout,
        }
    }
}
