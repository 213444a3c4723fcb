# ruff: noqa: RUF001  (full-width punctuation is how Chinese is written)
"""The glossary in Chinese: the same names and sections as in English; a test compares them.

Read by tools/write_glossary.py and `report`. Units have a table of their own, because few words serve all metrics.
"""

from __future__ import annotations

from mindgspo.metrics.glossary.entry import MetricInfo

TITLES: dict[str, str] = {
    "Rewards and advantages": "奖励与优势",
    "Evaluation on held-out problems": "验证集评测",
    "Clipping": "裁剪",
    "Importance ratio": "重要性比率",
    "Gradient and learning rate": "梯度与学习率",
    "Loss, KL and entropy": "损失、KL 与熵",
    "Sampler against trainer": "采样端与训练端的一致性",
    "Lengths": "长度",
    "Account of the samples": "样本去向",
    "Dynamic sampling": "动态采样",
    "Rollout engine": "采样引擎",
    "Batches of the updates": "更新的批次",
    "Progress, time and memory": "进度、时间与内存",
    "Supervised warm-up": "监督预热",
}

UNITS: dict[str, str] = {
    "": "",
    "GB": "GB",
    "MB": "MB",
    "calls": "次",
    "epochs": "轮",
    "graphs": "张图",
    "nat": "nat",
    "prompts": "个提示词",
    "rollouts": "次采样",
    "groups": "个组",
    "problems": "道题",
    "responses": "个回答",
    "reward": "奖励值",
    "s": "秒",
    "share": "比例",
    "share of groups": "占组的比例",
    "share of problems": "占题目的比例",
    "share of prompts": "占提示词的比例",
    "share of responses": "占回答的比例",
    "share of the gradient": "占梯度的比例",
    "share of tokens": "占 token 的比例",
    "std of the group": "组内标准差",
    "steps": "步",
    "tokens": "token",
    "tokens/s": "token/秒",
    "updates": "次更新",
}


def _cn(meaning: str, healthy: str = "", action: str = "") -> MetricInfo:
    return MetricInfo(meaning, "", healthy, action)


_LOWER_LR = "降低 optimizer.lr，或减少每次 rollout 的更新次数"
_SEE_SAMPLES = "查看 samples.jsonl：提示词、答案格式与奖励函数必须彼此吻合"
_MISMATCH = "若持续增大：采样用的权重已过期，或两张计算图数值不一致"
_CLIP_SEQ = "同 actor/pg_clipfrac_seq"

TEXTS: dict[str, MetricInfo] = {
    # ----- rewards and advantages
    "critic/score/<stat>": _cn(
        "各奖励函数的加权和，只统计有奖励的回答",
        "均值上升",
        "不上升：看诊断结论（回答被截断、组内奖励全同、找不到答案）",
    ),
    "critic/rewards/<stat>": _cn("用于计算优势的奖励", "同 critic/score；若 KL 惩罚放在奖励里则略低"),
    "critic/advantages/<stat>": _cn(
        "回答的优势",
        "均值接近 0；grpo 估计器下 |最大值| 小于 sqrt(G)",
        "均值远离 0：所用估计器没有基线；调整奖励尺度，或换一个 algorithm.advantage.estimator",
    ),
    "reward/correct_ratio": _cn(
        "判为正确的回答",
        "上升；0.2 到 0.8 之间信号最多",
        "接近 0：换更容易的题，或先做监督预热；接近 1：换更难的题，已经没有可学的了",
    ),
    "reward/wrong_ratio": _cn("给出了答案但答错的回答", "下降"),
    "reward/no_answer_ratio": _cn(
        "找不到可识别答案的回答",
        "低于 0.2 且下降",
        f"max_new_tokens 太短，或奖励函数不认这种答案格式；{_SEE_SAMPLES}",
    ),
    "reward/invalid_ratio": _cn(
        "因无法评分（出错、超时、标准答案无法解析）而剔除的回答",
        "0",
        "看下面各判定的占比，以及 samples.jsonl 里的 message",
    ),
    "reward/unparseable_gold_ratio": _cn(
        "奖励函数无法解析其标准答案的题目的回答，剔除",
        "0",
        "从数据中去掉这些题，或在 reward.functions 里换一个读得懂的函数",
    ),
    "reward/timeout_ratio": _cn(
        "在 reward.workers.timeout_s 内没有判完、子进程因此被杀掉的回答，剔除",
        "0 或接近 0",
        "高于 0.02：让自己的奖励函数快一些，或增大 reward.workers.timeout_s；samples.jsonl 里的 message 写明是哪个函数",
    ),
    "reward/error_ratio": _cn(
        "奖励函数出错（抛异常、崩溃、内存超过 reward.workers.memory_mb、返回值不是奖励）或弃权的回答，剔除",
        "0",
        "看 samples.jsonl 里的 message；第一条也在日志里",
    ),
    "reward/zero_signal_group_ratio": _cn(
        "组内奖励全部相同的组：优势为 0，没有梯度",
        "低于 0.7",
        "换更易或更难的题、增大组、提高温度；algorithm.filter_groups 可让这些组不参与平均",
    ),
    "reward/part/<name>/mean": _cn(
        "单个奖励函数加权前的均值；自己的函数以“文件名.函数名”命名",
        "各部分按自己的节奏变化",
        "某一项上升而你真正关心的一项下降：调整 reward.weights",
    ),
    "reward/extra/<name>/<key>/mean": _cn(
        "自己的奖励函数随分数一起返回的其他数值的均值，按键名分开；只记录，不影响训练"
    ),
    # ----- evaluation
    "val-core/acc/mean@1": _cn(
        "全部评测集所有留出题目上的贪心准确率；默认据此选出最佳步",
        "上升",
        "变化是否超出噪声，见 val-core/acc/change",
    ),
    "val-core/acc/mean@1/<bound>": _cn("上一项的 95% 区间端点，针对同类题目"),
    "val-core/acc/change": _cn(
        "自本次运行第一次评测以来 val-core/acc/mean@1 的变化，逐题比较",
        "下端点大于 0",
        "区间含 0：不能断言有变化；用更多题目评测，或训练更久",
    ),
    "val-core/acc/change/<bound>": _cn("上一项的 95% 区间端点；题目相同，所以比两个准确率各自的区间窄"),
    "val-core/<source>/acc/mean@<n>": _cn(
        "某个评测集或数据来源的留出题目上的准确率，每题 n 个样本取平均；mean@1 为贪心解码",
        "上升",
        "critic/score/mean 上升而它不动：策略只拟合了训练题，增加训练题",
    ),
    "val-core/<source>/acc/pass@<n>": _cn(
        "n 个样本中至少有一个答对的题目（无偏估计）",
        "不低于 mean@n",
        "下降而 mean@n 上升：策略失去多样性，注意 actor/entropy",
    ),
    "val-core/<source>/acc/maj@<n>": _cn(
        "n 个样本中出现次数最多的答案正确的题目，次数相同则视为抽签；对所有取法求期望",
        "高于 mean@n",
        "低于 mean@n：策略在错误答案上意见一致，在这类题目上多训练",
    ),
    "val-core/<source>/reward/mean@<n>": _cn("留出题目上回答的平均奖励，每题 n 个回答；@1 为贪心解码", "上升"),
    "val-core/<source>/reward/best@<n>": _cn("留出题目的 n 个样本中的最高奖励，对所有取法求期望", "高于 mean@n"),
    "val-core/<source>/<figure>/<bound>": _cn("该指标的 95% 区间端点，针对同类题目：见 docs/evaluation_cn.md"),
    "val-aux/<source>/failed_ratio": _cn(
        "评测中无法判分的回答（超时、出错），按答错计", "0", "增大 reward.workers.timeout_s，或修好奖励函数"
    ),
    "val-aux/<source>/no_answer_ratio": _cn("评测中找不到可识别答案的回答", "低于 0.2", _SEE_SAMPLES),
    "val-aux/<source>/response_length/<stat>": _cn("评测回答的长度", "同 response_length"),
    "val-aux/<source>/response_length/clip_ratio": _cn("评测中被截断的回答", "低于 0.1", "增大 rollout.max_new_tokens"),
    "val-aux/<source>/num_problems": _cn("评测题目数"),
    # ----- clipping
    "actor/pg_clipfrac_seq": _cn(
        "比率被裁剪的回答所占比例；若每个 token 有自己的比率，则先在回答内求 token 比例，再对回答取平均",
        "gspo 0.02 到 0.6；grpo 低于 0.01；每次 rollout 只更新一次时恰为 0",
        f"过高：{_LOWER_LR}；过低：裁剪范围太宽不起作用，或学习率太小",
    ),
    "actor/pg_clipfrac": _cn(
        "比率被裁剪的 token 所占比例",
        f"{_CLIP_SEQ}；论文中 gspo 为 0.15，grpo 为 0.0013",
        "远高于 actor/pg_clipfrac_seq：长回答更常被裁剪，检查 response_length",
    ),
    "actor/pg_clipfrac_pos_seq": _cn(
        "优势为正、在上界被裁剪的回答：概率的上升已超出允许范围",
        "与 actor/pg_clipfrac_neg_seq 同量级",
        "高出很多：略微增大 clip_high，或降低 optimizer.lr",
    ),
    "actor/pg_clipfrac_neg_seq": _cn(
        "优势为负、在下界被裁剪的回答：概率的下降已超出允许范围",
        "与 actor/pg_clipfrac_pos_seq 同量级",
        "高出很多：策略主要在“忘掉”旧回答；注意 actor/entropy，降低 optimizer.lr",
    ),
    "actor/pg_clipfrac_pos": _cn("优势为正、在上界被裁剪的 token", "同 actor/pg_clipfrac_pos_seq"),
    "actor/pg_clipfrac_neg": _cn("优势为负、在下界被裁剪的 token", "同 actor/pg_clipfrac_neg_seq"),
    "actor/pg_clipfrac_lower": _cn(
        "优势为负、损失被双重裁剪（clip_ratio_c）封顶的 token",
        "0 到 0.001",
        f"策略已远离采样时的策略：{_LOWER_LR}",
    ),
    # ----- importance ratio
    "actor/first_ratio_error_max": _cn(
        "每次 rollout 后第一个 mini-batch 上（尚未更新）最大的 |比率 - 1|",
        "低于 trainer.max_ratio_error；float32 约 1e-6，bfloat16 约 2e-3",
        "训练会停止：新旧对数概率的温度、填充、位置编号不一致，或权重已过期",
    ),
    "actor/log_ratio_mean": _cn("重要性比率对数的均值，gspo 即 log s；每个回答权重为 1", "绝对值低于 0.01", _LOWER_LR),
    "actor/log_ratio_min": _cn("本步最小的对数比率", "高于 -1；gspo 多在 -0.1 以上", _LOWER_LR),
    "actor/log_ratio_max": _cn("本步最大的对数比率", "低于 1；gspo 多在 0.1 以下", _LOWER_LR),
    "actor/log_ratio_hist/<bin>": _cn(
        "对数比率落在该区间的回答（每个回答一个比率时）或 token（每个 token 一个比率时）所占比例；"
        "区间按带符号的数量级划分，总和为 1",
        "以 0 为中心；gspo 大多在 -1e-2 到 1e-2 之间",
        f"外侧区间增多：{_LOWER_LR}；全部落在 within_1e-4：每次 rollout 只更新一次，或学习率太小",
    ),
    "actor/ratio_error_mean": _cn(
        "|比率 - 1| 的均值", "gspo 3e-4 到 1e-2；grpo 0.01 到 0.1", f"过高：{_LOWER_LR}；过低：裁剪起不到作用"
    ),
    "actor/ratio_error_max": _cn("最大的 |比率 - 1|", "低于 1", _LOWER_LR),
    "actor/ppo_kl": _cn("自 rollout 以来，每个 token 旧对数概率减新对数概率的均值", "绝对值低于 0.01", _LOWER_LR),
    "actor/ppo_kl_seq": _cn("同上，但每个回答权重为 1", "绝对值低于 0.01", _LOWER_LR),
    "actor/updates": _cn(
        "用本步 rollout 做了多少次优化器更新",
        "论文为 4；2 到 8",
        "为 1：比率恒为 1，永远不会裁剪，合法但等同于普通策略梯度；大于 8：注意 actor/pg_clipfrac_seq，"
        "降低 optimizer.lr",
    ),
    "actor/updates_skipped": _cn(
        "本步因损失或梯度不是有限数而跳过的更新数（trainer.on_nonfinite=skip）",
        "0",
        "看 run_dir/failures 中的批次；连续多次：降低 optimizer.lr 或 optimizer.max_grad_norm",
    ),
    # ----- gradient
    "actor/grad_norm": _cn(
        "裁剪前梯度的全局 L2 范数",
        "平稳；多数时候在 optimizer.max_grad_norm 的几倍以内",
        f"出现尖峰：{_LOWER_LR}；恰为 0：没有一组有信号",
    ),
    "actor/grad_share_length_decile/<decile>": _cn(
        "把本步的回答按长度排序、等分为十份（1 为最短），每一份占梯度的比例；一个回答的权重为 "
        "sum_t |d loss / d logp_t|，十份之和为 1",
        "seq-mean-token-mean：每份约 0.1；token-mean：与长度成正比",
        "第 10 份高于 0.3：更新由少数长回答决定；改用 seq-mean-token-mean，或看看最长的回答是什么",
    ),
    "actor/lr": _cn("最近一次更新的学习率", "即所设的学习率曲线；大模型 1e-6，快速上手的小模型 5e-5"),
    # ----- loss, KL, entropy
    "actor/pg_loss": _cn(
        "策略损失，对本步的各次更新取平均", "数值很小，在 0 附近波动；不必下降", "用 critic/score/mean 判断进展"
    ),
    "actor/loss": _cn(
        "实际求导的总损失：策略损失加 KL 惩罚减熵奖励",
        "接近 actor/pg_loss",
        "相差很大：algorithm.kl.coef 或 algorithm.entropy_coef 压过了奖励",
    ),
    "actor/kl": _cn(
        "策略与参考策略之间每个回答 token 的平均 KL，按所设的估计式计算",
        "缓慢增长，低于 0.2；k1 可能略为负值",
        "过高：增大 algorithm.kl.coef 或降低 optimizer.lr；读 samples.jsonl，看语言是否走样",
    ),
    "actor/kl_loss": _cn(
        "进入损失的 KL 惩罚：聚合之后、乘系数之前",
        "同 actor/kl（-norm 类聚合方式下还乘以长度）",
        "actor/kl_coef * actor/kl_loss 远大于 |actor/pg_loss|：减小 algorithm.kl.coef",
    ),
    "actor/kl_coef": _cn(
        "KL 惩罚的系数",
        "恒定；设了 algorithm.kl.target 时逐渐稳定",
        "一直上升：algorithm.kl.target 低于当前学习率所能达到的水平",
    ),
    "critic/kl": _cn(
        "从奖励中扣除的每个回答 token 的平均 KL，乘系数之前",
        "同 actor/kl",
        "过高：增大 algorithm.kl.coef 或降低 optimizer.lr",
    ),
    "critic/reference_version": _cn(
        "参考策略权重的版本，以更新次数计；滑动平均时为版本的同样平均",
        "参考策略冻结时不变，否则上升",
    ),
    "critic/reference_age": _cn(
        "参考策略落后于当前打分策略的更新次数",
        "参考策略冻结时随训练增长；否则不超过 algorithm.kl.reference.every 乘每步更新次数，"
        "滑动平均时约为每步更新次数除以 1 - decay",
        "数值很大且 actor/kl 与奖励相抵触：让参考策略跟随（algorithm.kl.reference.mode）",
    ),
    "actor/entropy": _cn(
        "策略在回答 token 处的平均熵",
        "缓慢下降",
        "骤降到接近 0：探索停止，降低学习率、增大 clip_high；不断上升：减小 entropy_coef",
    ),
    # ----- sampler against trainer
    "training/rollout_logprob_diff_max": _cn(
        "采样端与训练端 token 对数概率的最大差", "float32 低于 1e-4；bfloat16 低于 1", _MISMATCH
    ),
    "training/rollout_logprob_diff_mean": _cn("上述差的均值", "float32 低于 1e-5；bfloat16 低于 0.02", _MISMATCH),
    "training/rollout_probs_diff_max": _cn(
        "采样端与训练端 token 概率的最大差", "float32 低于 1e-3；bfloat16 低于 0.1", _MISMATCH
    ),
    "training/rollout_probs_diff_mean": _cn("上述差的均值", "float32 低于 1e-5；bfloat16 低于 0.01", _MISMATCH),
    "training/rollout_probs_diff_std": _cn("上述差的标准差", "与其均值同量级", _MISMATCH),
    "training/rollout_actor_probs_pearson_corr": _cn(
        "采样端与训练端 token 概率的相关系数；其中一方没有变化时不给出",
        "0.999 以上",
        "低于 0.99：两端的权重、位置编号或温度不同，而不只是舍入不同",
    ),
    "rollout_corr/kl": _cn(
        "采样端到训练端的每个回答 token 的 KL 散度，以对数概率之差的均值估计",
        "与下一项同量级，可略为负",
        _MISMATCH,
    ),
    "rollout_corr/k3_kl": _cn(
        "同一散度的另一种估计，永不为负；个别相差很大的 token 最先在这里显现",
        "float32 低于 1e-8；bfloat16 低于 0.005",
        "高于 0.01：由 training/rollout_actor_probs_pearson_corr 判断差异的种类，由最大差值查看个别 token；"
        "algorithm.rollout_correction 可限制其影响",
    ),
    "rollout_corr/weight_mean": _cn(
        "修正采样端与训练端差异的权重均值（algorithm.rollout_correction）",
        "0.95 到 1.05",
        "远低于 1：许多权重被截断或置零，见 rollout_corr/clipped_share",
    ),
    "rollout_corr/weight_max": _cn(
        "最大权重",
        "不超过 algorithm.rollout_correction.max",
        "总在上限：差异很大，见 training/rollout_logprob_diff_mean",
    ),
    "rollout_corr/weight_min": _cn(
        "最小权重",
        "高于 0.5；mode 为 mask 且有权重越界时为 0",
        "接近 0：训练端认为采样结果几乎不可能出现，见 training/rollout_logprob_diff_mean",
    ),
    "rollout_corr/ess": _cn(
        "权重的有效样本量 (sum w)^2 / (n sum w^2)，以占样本数的比例表示",
        "高于 0.9",
        "低于 0.5 时更新由少数样本决定：更频繁地同步采样端权重，让采样与训练使用同一数值类型，或改为逐 token 修正",
    ),
    "rollout_corr/clipped_share": _cn(
        "被截断或置零的权重",
        "低于 0.05",
        "过高：差异很大；先找原因，再考虑放宽 algorithm.rollout_correction.max",
    ),
    # ----- lengths
    "response_length/<stat>": _cn(
        "回答长度，含结束符",
        "平稳，或随奖励上升而缓慢增长",
        f"变长而奖励不升：看 actor/grad_share_length_decile；缩短到只剩几个 token：{_SEE_SAMPLES}",
    ),
    "response_length/clip_ratio": _cn(
        "在 rollout.max_new_tokens 处被截断的回答",
        "低于 0.1",
        "增大 rollout.max_new_tokens；被截断的回答很少含有答案",
    ),
    "prompt_length/<stat>": _cn("提示词长度", "不超过 data.max_prompt_length"),
    "prompt_length/clip_ratio": _cn(
        "被截到 data.max_prompt_length 的提示词", "0", "增大 data.max_prompt_length，或把 data.truncation 设为 drop"
    ),
    # ----- account
    "samples/generated": _cn("采样得到的回答", "加上 samples/earlier = trained + filtered + dropped + kept"),
    "samples/trained": _cn("进入损失的回答", "接近 samples/generated", "见 samples/filtered/<reason>"),
    "samples/filtered": _cn("有意剔除的回答", "未设过滤时为 0", "见 samples/filtered/<reason>"),
    "samples/filtered/<reason>": _cn(
        "有意剔除的回答，按原因：zero_signal（组内没有差别，需设 algorithm.filter_groups）、no_baseline，"
        "或导致没有奖励的判定",
        "zero_signal 同 reward/zero_signal_group_ratio；其余为 0",
        "zero_signal 高：选有时能答对的题；其余：同 reward/invalid_ratio",
    ),
    "samples/dropped": _cn("有信号但不训练的回答", "0", "见 samples/dropped/<reason>"),
    "samples/dropped/<reason>": _cn(
        "有信号但不训练的回答，按原因：surplus（批次已满），short（凑不满批次、跳过的一步），"
        "nonfinite（所在更新被跳过，见 trainer.on_nonfinite）",
        "surplus：少于一个批次；其余为 0",
        "surplus：每次少抽一些，或设 algorithm.filter_groups.keep_surplus_steps；"
        "short：增大 algorithm.filter_groups.max_num_gen_batches；nonfinite：看 run_dir/failures 中的批次",
    ),
    "samples/kept": _cn("留到之后的步再训练的回答", "少于一个批次"),
    "samples/earlier": _cn("批次中由之前的步生成的回答", "等于上一步留下的"),
    # ----- dynamic sampling
    "sampling/num_gen_batches": _cn(
        "这一步的采样次数", "1 到 3", "接近 algorithm.filter_groups.max_num_gen_batches：几乎没有题能教会什么，换题"
    ),
    "sampling/prompts": _cn("这一步抽取的提示词", "批次大小除以 signal_share"),
    "sampling/signal_share": _cn(
        "这一步采样的组中，回答在过滤指标上有差别的比例",
        "随着题目被学会而下降",
        "见 all_correct_share 与 none_correct_share",
    ),
    "sampling/all_correct_share": _cn("这一步采样的组中全部答对的比例", "随训练上升", "一开始就高：换更难的题"),
    "sampling/none_correct_share": _cn(
        "这一步采样的组中无一答对的比例", "随训练下降", "高：换更易的题、增大组，或增大 rollout.max_new_tokens"
    ),
    "sampling/groups_earlier": _cn("批次中由之前的步生成的组", "0"),
    "sampling/groups_waiting": _cn("等待之后的步训练的组", "少于一个批次"),
    "sampling/groups_expired": _cn(
        "留下后过期的组，整个训练累计",
        "0",
        "每次少抽一些，或增大 algorithm.filter_groups.keep_surplus_steps",
    ),
    "sampling/score_shift": _cn(
        "训练的回答的平均奖励减去生成的回答的平均奖励：筛选带来的偏差",
        "趋向中间：多数组失败时为正，多数组成功时为负",
    ),
    "sampling/length_shift": _cn(
        "训练的回答的平均长度减去生成的回答的平均长度：筛选带来的偏差", "难题的回答较长时为正"
    ),
    # ----- rollout engine
    "rollout/prefill_calls": _cn("prefill 次数", "每个提示词一次：同组回答共用"),
    "rollout/decode_steps": _cn(
        "decode 图的运行次数", "约为 token 数 / rollout.slots", "高出很多：忙碌的槽位太少，见 rollout/busy_slot_share"
    ),
    "rollout/busy_slot_share": _cn("解码槽位中装有未完成回答的比例", "长时间训练时高于 0.9", "减少 rollout.slots"),
    "rollout/slot_refills": _cn("回答完成后槽位让给排队者的次数", "回答总数减 rollout.slots"),
    # ----- progress
    "global_seqlen/min": _cn("若各副本按步内顺序取同样多的样本，一次更新中 token 最少的副本的 token 数"),
    "global_seqlen/max": _cn("同上，token 最多的副本"),
    "global_seqlen/minmax_diff": _cn("上两项之差：均衡所要消除的差距"),
    "global_seqlen/balanced_min": _cn("实际分配下一次更新中 token 最少的副本的 token 数", "接近 global_seqlen/mean"),
    "global_seqlen/balanced_max": _cn(
        "实际分配下 token 最多的副本；其他副本要等它",
        "接近 global_seqlen/mean",
        "设 trainer.balance_batches=true、增加每次更新的样本，或开启 trainer.packing",
    ),
    "global_seqlen/mean": _cn("一次更新中每个副本的平均 token 数"),
    "training/padding_share": _cn(
        "更新的 token 槽位中填充所占的比例",
        "开启 trainer.packing 时低于 0.1",
        "trainer.packing 配合 trainer.max_tokens_per_micro_batch，见 docs/batches_cn.md",
    ),
    "training/micro_batches_per_update": _cn(
        "一次更新中每个副本的前向与反向次数",
        "少",
        "内存允许时增大 trainer.max_tokens_per_micro_batch 或 trainer.samples_per_micro_batch",
    ),
    "training/global_step": _cn("已完成的训练步：一次 rollout 及其全部更新为一步"),
    "training/epoch": _cn("训练题已过几遍", "少数几遍", "题少而遍数多：与留出题目的准确率对照"),
    "training/updates": _cn("开始以来的优化器更新次数"),
    "training/weight_version": _cn("采样所用权重的版本号", "每步增加本步的更新次数"),
    "timing_s/<phase>": _cn(
        "各阶段耗时：gen、reward、old_log_prob、adv、update_actor、update_weights、step、testing、warm_up",
        "gen 与 update_actor 占大头",
        "reward 过大：判分太慢；update_weights 过大：检查并行方案",
    ),
    "perf/total_num_tokens": _cn("本步提示词与回答的 token 总数"),
    "perf/throughput": _cn(
        "每秒每设备处理的 token 数（按 total_num_tokens 计）",
        "最初几步要编译，之后平稳",
        "下降：回答变长、不断编译新图，或机器被他人占用",
    ),
    "perf/time_per_step": _cn("每步耗时", "最初几步之后平稳"),
    "perf/gen_tokens_per_second": _cn(
        "生成阶段每秒的回答 token 数", "随 rollout.slots 增大而提高，有上限", "偏低：内存允许时增大 rollout.slots"
    ),
    "perf/cpu_memory_used_gb": _cn("本进程常驻内存", "几步之后平稳", "持续增长即内存泄漏，请报告"),
    "perf/cpu_memory_used_max_gb": _cn(
        "多个 rank 时，各 rank 常驻内存的最大值",
        "几步之后平稳",
        "持续增长时会指出是哪个 rank（watch.memory_growth）",
    ),
    "perf/peak_rss_mb": _cn("本进程至今的最大常驻内存", "低于机器内存"),
    "perf/max_memory_allocated_gb": _cn(
        "至今占用的最大设备内存",
        "低于卡上的内存",
        "接近上限：减小 trainer.samples_per_micro_batch 或 rollout.slots",
    ),
    "perf/num_graph_compilations": _cn(
        "至今编译的图数", "几步之后不再增加", "增大 trainer.length_multiple，让长度种类变少"
    ),
    # ----- warm-up
    "sft/loss": _cn(
        "解答 token 的平均负对数似然",
        "下降",
        "不降：增大 warmup.lr 或 warmup.max_steps；上升：减小 warmup.lr",
    ),
    "sft/token_probability": _cn("解答 token 的平均概率", "上升"),
    "sft/grad_norm": _cn("裁剪前梯度的全局 L2 范数", "下降并趋于平稳", "出现尖峰：减小 warmup.lr"),
    "sft/lr": _cn("预热最后一次更新的学习率", "余弦下降到 warmup.lr 的 optimizer.min_lr_ratio 倍"),
    "sft/updates": _cn("预热更新次数", "不超过 warmup.max_steps"),
    "sft/accuracy": _cn(
        "在决定预热何时结束的题目上的贪心准确率",
        "上升；以 0.3 到 0.8 进入强化学习为宜",
        "接近 0：延长预热，否则没有回答能得到奖励",
    ),
}
