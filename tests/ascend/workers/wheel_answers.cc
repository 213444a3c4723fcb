// Asks the host code of MindSpore's own kernels, with nothing of the emulated card in front of it, about the calls on its
// input: <kernel> <number of inputs> {<DataType> <axes> <sizes>} <number of outputs> {...} <number of parameters> {...},
// and prints for each whether the dtypes are taken, the status of the tiling and the bytes of workspace.
#include <iostream>

#include "include/internal_op.h"
#include "include/log_agent.h"
#include "include/op_creator.h"
#include "include/op_param.h"

using namespace mindspore::internal;

static void tell(const std::string& text, const char*, int32_t, const char*, LogLevel level) {
  if (level >= LogLevel::ERROR) std::cerr << text << "\n";
}

template <class Value>
static Value read() {
  Value value;
  std::cin >> value;
  return value;
}

template <class Value>
static std::vector<Value> read_list() {
  std::vector<Value> values(read<size_t>());
  for (auto& value : values) std::cin >> value;
  return values;
}

static void read_tensors(std::vector<ArgImmutableInfo>* infos, std::vector<DataType>* dtypes, ShapeInfoList* shapes) {
  for (size_t count = read<size_t>(); count > 0; --count) {
    const auto dtype = static_cast<DataType>(read<int>());
    infos->emplace_back(dtype, kFormatND);
    dtypes->push_back(dtype);
    shapes->push_back(read_list<int64_t>());
  }
}

int main() {
  SetLogFunction(tell);
  std::vector<char> tiling(1 << 24);
  for (std::string kernel; std::cin >> kernel;) {
    InputsImmutableInfoList inputs, outputs;
    std::vector<DataType> input_types, output_types;
    ShapeInfoList input_shapes, output_shapes;
    read_tensors(&inputs, &input_types, &input_shapes);
    read_tensors(&outputs, &output_types, &output_shapes);
    InternalOpPtr op;
    if (kernel == "ReshapeAndCache") {
      op = CreateReshapeAndCacheOp(inputs, outputs, kernel);
    } else if (kernel == "MatMul") {
      MatmulParam given;
      given.transpose_a = read<int>();
      given.transpose_b = read<int>();
      given.with_bias = read<int>();
      op = CreateMatmulOp(inputs, outputs, given, kernel);
    } else if (kernel == "AddRmsNorm" || kernel == "RmsNorm") {
      NormParam given;
      given.eps = read<float>();
      op = (kernel == "RmsNorm" ? CreateRmsNormOp : CreateAddRmsNormOp)(inputs, outputs, given, kernel);
    } else if (kernel == "Softmax") {
      SoftmaxParam given;
      given.axes = read_list<int64_t>();
      op = CreateSoftmaxOp(inputs, outputs, given, kernel);
    } else if (kernel == "Gather") {
      GatherParam given;
      given.batch_dims = read<int64_t>();
      given.axes = read_list<int64_t>();
      op = CreateGatherOp(inputs, outputs, given, kernel);
    } else if (kernel == "PagedAttention") {
      PagedAttentionParam paged;
      paged.head_num = read<int>();
      paged.kv_head_num = read<int>();
      paged.tor = read<float>();
      paged.mla_v_dim = read<int>();
      paged.kv_seq_len = read_list<int32_t>();
      paged.q_seq_len = read_list<int32_t>();
      op = CreatePagedAttentionOp(inputs, outputs, paged, kernel);
    }
    if (!op) {
      std::cout << "none\n";
      return 1;  // what follows cannot be read
    }
    op->Init();
    op->UpdateShape(input_shapes, output_shapes);
    HostRunInfoPtr info;
    const int status = op->Tiling(tiling.data(), &info);
    size_t bytes = 0;
    for (const size_t each : op->GetWorkspaceSize()) bytes += each;
    std::cout << IsInternalKernelDtypesSupported(kernel, input_types, output_types) << " " << status << " " << bytes << "\n";
  }
}
