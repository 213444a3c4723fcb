// MindSpore's own ("internal") kernels. The wheel's library says what they take, how they are cut up and how much
// workspace that needs, as it does on a card; their launch goes through the operators' callback. This library is loaded
// in front of the wheel's, so that kernels are made here. Built against its headers, in the old ABI as the wheel is.
#include <dlfcn.h>

#include <functional>
#include <memory>
#include <sstream>

#include "common.h"
#include "include/internal_op.h"
#include "include/op_creator.h"
#include "include/op_param.h"

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

using Render = std::function<std::string(const void*)>;  // the parameters of a kernel as members of a JSON object

// A kernel of which all but the launch is the wheel's: `host`.
class EmulatedKernel : public InternalOp {
 public:
  EmulatedKernel(InternalOpPtr host, const InputsImmutableInfoList& inputs, const OutputsImmutableInfoList& outputs, const std::string& name, Render render, const void* parameters)
      : InternalOp(inputs, outputs, name), host_(std::move(host)), render_(std::move(render)) {
    write(parameters);
  }
  InternalStatus UpdateParam(const void* parameters) override {
    write(parameters);
    return host_->UpdateParam(parameters);
  }
  InternalStatus UpdateShape(const ShapeInfoList& inputs, const ShapeInfoList& outputs) override {
    inputs_shape_ = inputs;
    outputs_shape_ = outputs;
    return host_->UpdateShape(inputs, outputs);
  }
  size_t GetTilingSize() const override { return host_->GetTilingSize(); }
  std::vector<size_t> GetWorkspaceSize() const override { return host_->GetWorkspaceSize(); }
  void SetTilingInfo(const TilingInfoPtr& info) override { host_->SetTilingInfo(info); }
  InternalStatus Tiling(RawHostAddr address, HostRunInfoPtr* info) override {
    is_cut_ = true;
    return host_->Tiling(address, info);
  }
  std::string DumpTiling(const RawHostAddr address) const override { return host_->DumpTiling(address); }
  ShapeInfoList InferShape(const ShapeInfoList& shapes) const override { return host_->InferShape(shapes); }
  InternalStatus TilingFromTuning(const RawDeviceAddr address) override { return host_->TilingFromTuning(address); }
  bool IsSupported(const InputDataTypes& dtypes) override { return host_->IsSupported(dtypes); }
  OpType GetOpType() override { return host_->GetOpType(); }
  uint32_t GetLaunchCoreNum() const override { return host_->GetLaunchCoreNum(); }
  InternalStatus Launch(const InputsAddrList& inputs, const OutputsAddrList& outputs, const WsAddrList&, void*, const std::string&) override {
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
    int64_t workspace = is_cut_ ? 0 : -1;  // not of this kernel where MindSpore has it of an equal one
    for (const size_t bytes : host_->GetWorkspaceSize()) workspace += is_cut_ ? bytes : 0;
    std::string told = "{\"workspace\":" + std::to_string(workspace) + json_ + "}";
    arguments.push_back({'z', 0, 0.0, told.data()});
    const std::string name = "internal:" + op_name_;
    int status = emulator_call_operator(name.c_str(), emulator::kCheck, arguments.data(), arguments.size());
    if (status == emulator::kOk) status = emulator_call_operator(name.c_str(), emulator::kLaunch, arguments.data(), arguments.size());
    for (auto* tensor : tensors) aclDestroyTensor(tensor);
    return status == emulator::kOk ? kInternalOk : kInternalError;
  }

 protected:
  InternalStatus InitImpl() override { return host_->Init(); }
  InternalStatus TilingImpl(RawHostAddr, HostRunInfoPtr*) override { return kInternalError; }  // see Tiling and Launch
  InternalStatus LaunchImpl(const InputsAddrList&, const OutputsAddrList&, const WsAddrList&, void*) override { return kInternalError; }

 private:
  void write(const void* parameters) { json_ = render_ ? render_(parameters) : ""; }

  InternalOpPtr host_;
  Render render_;
  bool is_cut_ = false;
  std::string json_;  // members behind others
};

// ,"name":value for numbers, flags and lists of numbers.
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
    text_ << ",\"" << name << "\":";
    return text_;
  }
  std::ostringstream text_;
};

// The wheel's function of the same name as this library's.
template <class Function>
Function* of_wheel(Function* own) {
  Dl_info info;
  dladdr(reinterpret_cast<void*>(own), &info);
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, info.dli_sname));
}

// nullptr, as of the wheel, where it makes no such kernel.
static InternalOpPtr emulated(InternalOpPtr host, const InputsImmutableInfoList& inputs, const OutputsImmutableInfoList& outputs, const std::string& name, Render render, const void* parameters) {
  if (!host) return nullptr;
  return std::make_shared<EmulatedKernel>(std::move(host), inputs, outputs, name, std::move(render), parameters);
}

#define KERNEL_ARGUMENTS const InputsImmutableInfoList &inputs, const OutputsImmutableInfoList &outputs
// A kernel without parameters.
#define PLAIN(Kernel) \
  InternalOpPtr Create##Kernel##Op(KERNEL_ARGUMENTS, const std::string& name) { \
    static const auto make = of_wheel(&Create##Kernel##Op); \
    return emulated(make(inputs, outputs, name), inputs, outputs, name, nullptr, nullptr); \
  }
// A kernel with parameters; `members` adds those that its emulated operator reads.
#define WITH(Kernel, Parameters, members) \
  InternalOpPtr Create##Kernel##Op(KERNEL_ARGUMENTS, const Parameters& given, const std::string& name) { \
    static const auto make = of_wheel(&Create##Kernel##Op); \
    auto render = [](const void* address) { \
      [[maybe_unused]] const auto& p = *static_cast<const Parameters*>(address); \
      return Json() members.text(); \
    }; \
    return emulated(make(inputs, outputs, given, name), inputs, outputs, name, render, &given); \
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
     .number("num_heads", p.head_num).number("num_kv_heads", p.kv_head_num).number("scale", p.tor).number("mla_v_dim", p.mla_v_dim) LENGTHS)
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

}  // namespace mindspore::internal
