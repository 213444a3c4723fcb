// MindSpore's own ("internal") kernels through the operators' callback. Built against the wheel's headers, in the old
// ABI as the wheel is, under the name of the wheel's library: one that is loaded already is not searched for again.
#include <functional>
#include <memory>
#include <sstream>

#include "common.h"
#include "include/internal_op.h"
#include "include/op_creator.h"
#include "include/op_param.h"
#include "log_agent.h"

// Of operators.cc, whose C++ functions have the new ABI.
extern "C" int emulator_call_operator(const char* name, emulator::Phase phase, emulator::Argument* arguments, int64_t count);
extern "C" void* aclCreateTensor(const int64_t*, uint64_t, int, const int64_t*, int64_t, int, const int64_t*, uint64_t, void*);
extern "C" int aclDestroyTensor(void*);

namespace mindspore::internal {

static int acl_dtype(DataType type) {
  switch (type) {
    case kTypeFloat32: return 0;
    case kTypeFloat16: return 1;
    case kTypeInt8: return 2;
    case kTypeInt32: return 3;
    case kTypeUint8: return 4;
    case kTypeInt16: return 6;
    case kTypeUint16: return 7;
    case kTypeUint32: return 8;
    case kTypeInt64: return 9;
    case kTypeUint64: return 10;
    case kTypeFloat64: return 11;
    case kTypeBool: return 12;
    case kTypeBF16: return 27;
    default: return -1;  // an input that is not there
  }
}

InternalOp::InternalOp(const InputsImmutableInfoList& inputs, const OutputsImmutableInfoList& outputs, const std::string& name)
    : inputs_ii_(inputs), outputs_ii_(outputs), op_name_(name) {}
InternalStatus InternalOp::Init() { return InitImpl(); }
InternalStatus InternalOp::InitImpl() { return kInternalOk; }
InternalStatus InternalOp::UpdateShape(const ShapeInfoList& inputs, const ShapeInfoList& outputs) {
  inputs_shape_ = inputs;
  outputs_shape_ = outputs;
  return kInternalOk;
}
void InternalOp::SetTilingInfo(const TilingInfoPtr&) {}
InternalStatus InternalOp::Launch(const InputsAddrList& inputs, const OutputsAddrList& outputs, const WsAddrList& workspaces, void* stream, const std::string&) {
  return LaunchImpl(inputs, outputs, workspaces, stream);
}
InternalStatus InternalOp::LaunchWithProfiling(const InputsAddrList& inputs, const OutputsAddrList& outputs, const WsAddrList& workspaces, void* stream, const std::string&) {
  return LaunchImpl(inputs, outputs, workspaces, stream);
}
InternalStatus InternalOp::Tiling(RawHostAddr address, HostRunInfoPtr* info) { return TilingImpl(address, info); }
InternalStatus InternalOp::TilingFromTuning(const RawDeviceAddr) { return kInternalOk; }
bool InternalOp::IsSupported(const InputDataTypes&) { return true; }
void InternalOp::SetHostRunInfoComm(const HostRunInfoComm&, HostRunInfoPtr*) {}

struct EmulatedRunInfo : HostRunInfo {
  uint32_t GetBlockDim() const override { return 1; }
};

using Render = std::function<std::string(const void*)>;  // the parameters of a kernel as members of a JSON object

class EmulatedKernel : public InternalOp {
 public:
  EmulatedKernel(const InputsImmutableInfoList& inputs, const OutputsImmutableInfoList& outputs, const std::string& name, Render render, const void* parameters)
      : InternalOp(inputs, outputs, name), render_(std::move(render)) {
    UpdateParam(parameters);
  }
  InternalStatus UpdateParam(const void* parameters) override {
    json_ = render_ ? "{" + render_(parameters) + "}" : "{}";
    return kInternalOk;
  }
  size_t GetTilingSize() const override { return 64; }
  std::vector<size_t> GetWorkspaceSize() const override { return {}; }
  std::string DumpTiling(const RawHostAddr) const override { return ""; }
  ShapeInfoList InferShape(const ShapeInfoList& shapes) const override { return shapes; }
  OpType GetOpType() override { return kOpTypeAICore; }
  uint32_t GetLaunchCoreNum() const override { return 1; }

 protected:
  InternalStatus TilingImpl(RawHostAddr, HostRunInfoPtr* info) override {
    *info = std::make_shared<EmulatedRunInfo>();
    return kInternalOk;
  }
  InternalStatus LaunchImpl(const InputsAddrList& inputs, const OutputsAddrList& outputs, const WsAddrList&, void*) override {
    std::vector<emulator::Argument> arguments;
    std::vector<void*> tensors;
    auto add = [&](const ArgImmutableInfo& info, const ShapeInfo& shape, void* address) {
      void* tensor = nullptr;
      const int dtype = acl_dtype(info.GetDtype());
      if (dtype >= 0 && address) {
        tensor = aclCreateTensor(shape.data(), shape.size(), dtype, nullptr, 0, static_cast<int>(info.GetFormat()), nullptr, 0, address);
        tensors.push_back(tensor);
      }
      arguments.push_back({'t', 0, 0.0, tensor});
    };
    for (size_t i = 0; i < inputs.size(); ++i) add(inputs_ii_[i], inputs_shape_[i], inputs[i]);
    arguments.push_back({'|', 0, 0.0, nullptr});
    for (size_t i = 0; i < outputs.size(); ++i) add(outputs_ii_[i], outputs_shape_[i], outputs[i]);
    arguments.push_back({'z', 0, 0.0, json_.data()});
    const std::string name = "internal:" + op_name_;
    int status = emulator_call_operator(name.c_str(), emulator::kCheck, arguments.data(), arguments.size());
    if (status == emulator::kOk) status = emulator_call_operator(name.c_str(), emulator::kLaunch, arguments.data(), arguments.size());
    for (auto* tensor : tensors) aclDestroyTensor(tensor);
    return status == emulator::kOk ? kInternalOk : kInternalError;
  }

 private:
  Render render_;
  std::string json_;
};

// "name": value, for numbers, flags and lists of numbers.
class Json {
 public:
  template <class Value>
  Json& number(const char* name, Value value) {
    begin(name) << +value;
    return *this;
  }
  template <class Values>
  Json& list(const char* name, const Values& values) {
    auto& text = begin(name) << "[";
    bool is_first = true;
    for (auto value : values) {
      text << (is_first ? "" : ",") << static_cast<int64_t>(value);
      is_first = false;
    }
    text << "]";
    return *this;
  }
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream& begin(const char* name) {
    text_.precision(9);
    text_ << (text_.tellp() > 0 ? "," : "") << '"' << name << "\":";
    return text_;
  }
  std::ostringstream text_;
};

#define KERNEL_ARGUMENTS const InputsImmutableInfoList &inputs, const OutputsImmutableInfoList &outputs
// A kernel without parameters.
#define PLAIN(Kernel) \
  InternalOpPtr Create##Kernel##Op(KERNEL_ARGUMENTS, const std::string& name) { \
    return std::make_shared<EmulatedKernel>(inputs, outputs, name, nullptr, nullptr); \
  }
// A kernel with parameters; `members` adds those that its emulated operator reads.
#define WITH(Kernel, Parameters, members) \
  InternalOpPtr Create##Kernel##Op(KERNEL_ARGUMENTS, const Parameters& given, const std::string& name) { \
    auto render = [](const void* address) { \
      [[maybe_unused]] const auto& p = *static_cast<const Parameters*>(address); \
      return Json() members.text(); \
    }; \
    return std::make_shared<EmulatedKernel>(inputs, outputs, name, render, &given); \
  }

PLAIN(Add)
PLAIN(Sub)
PLAIN(Mul)
PLAIN(RealDiv)
PLAIN(Cast)
PLAIN(QuantPerChannel)
PLAIN(Swish)
PLAIN(LogicalNot)
PLAIN(GeLU)
PLAIN(FastGeLU)
PLAIN(MoeTokenUnpermute)
PLAIN(ReshapeAndCache)
PLAIN(ReshapeAndCacheNz)
PLAIN(QuantLinearSparse)
PLAIN(TssAddLayerNorm)
PLAIN(Less)
PLAIN(Equal)
PLAIN(NotEqual)
PLAIN(DynamicQuant)
#define MATMUL .number("transpose_a", p.transpose_a).number("transpose_b", p.transpose_b).number("with_bias", p.with_bias)
WITH(Matmul, MatmulParam, MATMUL)
WITH(GroupedMatmul, MatmulParam, MATMUL)
WITH(MatmulAddRmsNorm, MatmulAddRmsNormParam, )
WITH(MultiWeightMatmul, MultiWeightMatmulParam, )
WITH(TransposeBatchMatmulTranspose, TransBMMTransParam, )
#define NORM .number("epsilon", p.eps)
WITH(AddLayerNorm, NormParam, NORM)
WITH(AddRmsNormDynamicQuant, NormParam, NORM)
WITH(AddRmsNormQuant, NormParam, NORM)
WITH(RmsNorm, NormParam, NORM)
WITH(AddRmsNorm, NormParam, NORM)
WITH(RmsNormQuant, NormParam, NORM)
WITH(GatherPreRmsNorm, NormParam, NORM)
WITH(Transpose, TransposeParam, .list("axes", p.axes))
WITH(Softmax, SoftmaxParam, .list("axes", p.axes))
WITH(ReduceSum, ReduceSumParam, .list("axes", p.axes))
WITH(SwiGLU, SwiGLUParam, .number("axis", p.axis))
WITH(SwiGLUDynamicQuant, SwiGLUParam, .number("axis", p.axis))
WITH(Gather, GatherParam, .number("batch_dims", p.batch_dims).list("axes", p.axes))
WITH(Split, SplitParam, .number("split_dim", p.split_dim).list("split_sizes", p.split_sizes))
WITH(ApplyRotaryPosEmb, ApplyRotaryPosEmbParam, .number("cos_format", p.cos_format))
WITH(ApplyRotaryPosEmbNz, ApplyRotaryPosEmbParam, .number("cos_format", p.cos_format))
WITH(DynamicNTK, DynamicNTKParam, )
#define LENGTHS .list("kv_seq_len", p.kv_seq_len).list("q_seq_len", p.q_seq_len)
WITH(FlashAttentionScore, FlashAttentionScoreParam,
     .number("num_heads", p.head_num).number("input_layout", p.input_layout).number("sparse_mode", p.sparse_mode).number("scale", p.tor) LENGTHS)
WITH(PagedAttention, PagedAttentionParam,
     .number("num_heads", p.head_num).number("num_kv_heads", p.kv_head_num).number("scale", p.tor) LENGTHS)
WITH(PagedCacheLoad, PagedCacheLoadParam, )
WITH(KvScaleCache, KvScaleCacheParam, )
WITH(AsdReshapeAndCache, ReshapeAndCacheParam, )
WITH(TransData, TransDataParam, )
WITH(GroupTopk, GroupTopkParam, )
WITH(FusedAddTopkDiv, FusedAddTopkDivParam, )
WITH(MLA, MLAParam, )
WITH(MlaPreprocess, MlaPreprocessParam, )
WITH(RingMLA, RingMLAParam, )
WITH(MoeGatingGroupTopK, MoeGatingGroupTopKParam, )
WITH(MoeInitRouting, MoeInitRoutingParam, )

bool IsInternalKernelDtypesSupported(const std::string, InputDataTypes, InputDataTypes) { return true; }
void SetLogFunction(LogFuncPtr) {}
short GetPlatformEnum(const std::string&) { return 1; }

}  // namespace mindspore::internal
