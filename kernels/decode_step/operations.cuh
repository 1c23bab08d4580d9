// The files of the operations that a decode step is made of, each in a namespace of its own.
#pragma once

#include "lib/vec.cuh"

#include "lib/cluster.cuh"
#include "lib/mma.cuh"
#include "lib/reduce.cuh"
#include "lib/stored.cuh"
#include "lib/tma.cuh"
#include "record/encode.cuh"
#include "swiglu/swiglu.cuh"
#include "wgmma/early.cuh"
#include "wgmma/widths.cuh"

#include "mhc_pre/parts.cuh"
#include "mhc_pre/simple.cuh"

namespace linear_file {
#include "linear.cu"
#undef ENTRIES
#undef ENTRY
} // namespace linear_file
namespace rmsnorm_file {
#include "rmsnorm.cu"
#undef ENTRIES
#undef ENTRY
} // namespace rmsnorm_file
namespace rope_file {
#include "rope.cu"
#undef ENTRIES
#undef ENTRY
} // namespace rope_file
namespace mhc_post_file {
#include "mhc_post.cu"
#undef ENTRIES
#undef ENTRY
} // namespace mhc_post_file
namespace compressor_file {
#include "compressor.cu"
#undef ENTRIES
#undef ENTRY
} // namespace compressor_file
namespace index_scores_file {
#include "index_scores.cu"
#undef ENTRIES
#undef ENTRY
} // namespace index_scores_file
namespace top_k_file {
#include "top_k.cu"
#undef ENTRIES
#undef ENTRY
} // namespace top_k_file
namespace sparse_attention_file {
#include "sparse_attention.cu"
#undef ENTRIES
#undef ENTRY
} // namespace sparse_attention_file
namespace record_write_file {
#include "record_write.cu"
#undef ENTRIES
#undef ENTRY
} // namespace record_write_file
namespace record_attention_file {
#define FOR_RECORDS_ON_TENSOR_CORES(MACRO) MACRO(v4_fp8) MACRO(v4_nvfp4) MACRO(v4_bf16)
#include "record_attention.cu"
#undef ENTRIES
#undef ENTRY
} // namespace record_attention_file
#if __CUDA_ARCH__ == 900
namespace fp8_gemm_file {
#include "fp8_gemm.cu"
#undef ENTRIES
#undef ENTRY
} // namespace fp8_gemm_file
namespace index_records_file {
#include "index_records.cu"
#undef ENTRIES
#undef ENTRY
} // namespace index_records_file
namespace moe_fp4_file {
#include "moe_fp4.cu"
#undef ENTRIES
#undef FORMATS
} // namespace moe_fp4_file
#endif
namespace router_file {
#include "router.cu"
#undef ENTRIES
#undef ENTRY
} // namespace router_file
namespace experts_file {
#include "experts.cu"
#undef ENTRIES
#undef ENTRY
} // namespace experts_file
namespace hyper_head_file {
#include "hyper_head.cu"
#undef ENTRIES
#undef ENTRY
} // namespace hyper_head_file
namespace sample_file {
#include "sample.cu"
#undef ENTRIES
#undef ENTRY
} // namespace sample_file
