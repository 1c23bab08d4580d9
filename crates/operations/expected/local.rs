//! Local errors: the rounding error that a correct kernel may add at one step of a function. A step is an ATen operation, under
//! the name that PyTorch gives it. Operations of this package that compute the same step have the same error
//! (`reference/errors.rs`), so that a bound of a function that a user wrote and a bound of a named operation agree.

pub use reference::LAMBDA;
use reference::errors::{EXPONENTIAL, LOGARITHM, ONE_ROUNDING, QUOTIENT, ROOT};

/// Rounding error that one step adds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Local {
    /// None: values are moved, selected or compared.
    Exact,
    /// A bound for each element, see [`Units`].
    Units(Units),
    /// The error of a sum of products or of terms ([`super::sum`]).
    Sum,
    /// Half a spacing of the type that values are converted to.
    Cast,
    /// The errors of the simpler steps that the operation consists of.
    Steps,
    /// Undefined: the values are random, so that no kernel gives the same.
    Random,
}

/// Bound of the error of an element z = f(x), in units of the unit roundoff u:
/// max((`relative` + `slope`·|x|)·|z|, `absolute`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Units {
    /// Units of |z|.
    pub relative: f64,
    /// Units of |x|·|z|.
    pub slope: f64,
    /// The smallest bound.
    pub absolute: f64,
}

const fn relative(relative: f64) -> Local {
    Local::Units(Units {
        relative,
        slope: 0.0,
        absolute: 0.0,
    })
}

/// Error of functions that kernels compute from a polynomial or from an exponential: near a zero of the function, the error is
/// absolute.
const fn absolute(relative: f64, absolute: f64) -> Local {
    Local::Units(Units {
        relative,
        slope: 0.0,
        absolute,
    })
}

/// Error of eˣ, and of powers with the logarithm of their result in place of x.
const fn exponential(relative: f64) -> Local {
    Local::Units(Units {
        relative,
        slope: EXPONENTIAL[1],
        absolute: 0.0,
    })
}

/// ATen operations, separated by spaces, and the local error of each. Operations that PyTorch composes of others are left out.
/// Overloads share the error of their operation, and so do the forms that write in place. Half an ulp is one unit. Sources of the
/// errors of functions are the tables of maximum errors in the CUDA C++ Programming Guide (*Mathematical Functions*), rounded up,
/// and the vector libraries of CPUs (SLEEF: 1 ulp = 2 units).
pub const ATEN: [(Local, &str); 17] = [
    (
        Local::Exact,
        "view _unsafe_view _reshape_alias reshape t transpose permute movedim expand expand_as squeeze unsqueeze slice \
         select split split_with_sizes unsafe_split unsafe_split_with_sizes unbind chunk narrow as_strided alias detach \
         lift_fresh lift_fresh_copy clone contiguous cat stack roll flip gather index index_select take embedding \
         masked_fill where tril triu constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d \
         replication_pad2d replication_pad3d neg abs relu clamp clamp_min clamp_max maximum minimum fmax fmin max min amax \
         amin sort topk kthvalue median copy fill zero scatter index_copy masked_scatter slice_scatter select_scatter \
         diagonal_scatter as_strided_scatter diagonal diag_embed repeat repeat_interleave pixel_shuffle pixel_unshuffle \
         channel_shuffle unfold im2col upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact2d \
         hardtanh threshold threshold_backward max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool2d \
         adaptive_max_pool3d fractional_max_pool2d select_backward slice_backward diagonal_backward \
         value_selecting_reduction_backward split_copy sign round floor ceil trunc frac hardtanh_backward squeeze_copy \
         view_copy unsqueeze_copy permute_copy transpose_copy expand_copy cummax cummin logical_and logical_or logical_not \
         logical_xor bitwise_and bitwise_or bitwise_not bitwise_xor eq ne lt le gt ge isnan isinf isfinite argmax argmin \
         argsort any all nonzero one_hot searchsorted bucketize bincount count_nonzero floor_divide remainder fmod \
         _local_scalar_dense zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty zeros ones full \
         empty empty_strided new_empty_strided arange linspace eye scalar_tensor tril_indices triu_indices is_same_size \
         equal sym_size sym_stride sym_numel sym_storage_offset mode nanmedian masked_select put _unique2 unique_dim \
         unique_consecutive signbit frexp view_as_real view_as_complex complex _conj conj_physical _neg_view allclose \
         is_set_to bartlett_window blackman_window hamming_window hann_window kaiser_window range empty_permuted",
    ),
    (relative(ONE_ROUNDING), "add sub mul rsub"),
    (relative(QUOTIENT), "div true_divide reciprocal"),
    (relative(ROOT), "sqrt"),
    (relative(ROOT + ONE_ROUNDING), "rsqrt hypot"),
    (exponential(EXPONENTIAL[0]), "exp exp2"),
    (exponential(2.0 * EXPONENTIAL[0]), "pow"),
    (absolute(LOGARITHM, LOGARITHM), "expm1 tanh"),
    (relative(LOGARITHM), "log1p sinh asinh atanh atan asin cosh"),
    (absolute(LOGARITHM, 2.0), "log log2 log10 sin cos acos acosh tan atan2"),
    (absolute(16.0, 8.0), "erf erfc"),
    (
        relative(32.0),
        "erfinv xlogy i0 special_i0e special_i1 special_i1e special_erfcx polygamma",
    ),
    (absolute(32.0, 16.0), "lgamma digamma special_ndtri"),
    (
        Local::Sum,
        "sum mean mm bmm addmm baddbmm addmv mv dot vdot convolution convolution_backward _convolution avg_pool1d avg_pool2d \
         avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d avg_pool2d_backward avg_pool3d_backward \
         _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward cumsum index_add scatter_add embedding_dense_backward \
         max_pool2d_with_indices_backward max_pool3d_with_indices_backward col2im unfold_backward \
         upsample_nearest1d_backward upsample_nearest2d_backward trace cumprod prod linear matmul reflection_pad2d_backward replication_pad2d_backward upsample_nearest3d_backward \
         reflection_pad1d_backward reflection_pad3d_backward replication_pad1d_backward replication_pad3d_backward \
         _upsample_nearest_exact1d_backward _upsample_nearest_exact2d_backward _upsample_nearest_exact3d_backward \
         adaptive_max_pool2d_backward adaptive_max_pool3d_backward scatter_reduce index_reduce _fft_r2c _fft_c2r _fft_c2c",
    ),
    (Local::Cast, "_to_copy to"),
    (
        Local::Steps,
        "_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data native_layer_norm \
         native_layer_norm_backward native_group_norm native_group_norm_backward native_batch_norm _native_batch_norm_legit \
         _native_batch_norm_legit_no_training cudnn_batch_norm native_batch_norm_backward _fused_rms_norm \
         _fused_rms_norm_backward var std var_mean std_mean linalg_vector_norm norm _weight_norm_interface logsumexp gelu \
         gelu_backward silu silu_backward sigmoid sigmoid_backward tanh_backward softplus softplus_backward elu elu_backward \
         selu celu mish mish_backward hardswish hardswish_backward hardsigmoid hardsigmoid_backward log_sigmoid_forward \
         log_sigmoid_backward glu glu_backward mse_loss mse_loss_backward smooth_l1_loss smooth_l1_loss_backward huber_loss \
         huber_loss_backward nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward binary_cross_entropy \
         binary_cross_entropy_with_logits addcdiv lerp square dist index_put _index_put_impl logaddexp logit softshrink \
         hardshrink _safe_softmax linalg_cross leaky_relu leaky_relu_backward prelu _prelu_kernel addcmul logcumsumexp \
         _logcumsumexp polar angle",
    ),
    (
        Local::Random,
        "bernoulli rand rand_like randn randn_like randint randint_like randperm normal uniform native_dropout dropout \
         alpha_dropout feature_dropout multinomial exponential poisson geometric random rrelu_with_noise binomial \
         _standard_gamma _sample_dirichlet fractional_max_pool3d",
    ),
];

/// Returns all operations of [`ATEN`] with their local errors.
pub fn all() -> impl Iterator<Item = (&'static str, Local)> {
    let named = |(local, names): &'static (Local, &'static str)| names.split_whitespace().map(|name| (name, *local));
    ATEN.iter().flat_map(named)
}
