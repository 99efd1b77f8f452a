package stacks

import (
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// The stacks of a transformer in training, with what became of their tensors: numbers
// of a run of 35 steps, of which each frees its gradients before the next.
func TestCategoryOfTraining(t *testing.T) {
	all := real(t)
	for name, c := range map[string]struct {
		fate Fate
		want string
	}{
		"module to":           {Fate{Live: 3}, Parameter},
		"randint":             {Fate{Live: 1}, Input},
		"embedding":           {Fate{Crossed: 35}, Activation},
		"reshape in linear":   {Fate{Crossed: 420}, Activation},
		"workspace":           {Fate{Live: 1}, Workspace},
		"dropout":             {Fate{Crossed: 419, Live: 1}, Activation},
		"add":                 {Fate{Live: 12}, Activation},
		"log_softmax":         {Fate{Crossed: 35}, Activation},
		"ones_like":           {Fate{Stayed: 35}, Gradient},
		"weight gradient":     {Fate{Crossed: 1258, Live: 37}, Gradient},
		"bias gradient":       {Fate{Crossed: 1666, Live: 49}, Gradient},
		"layer norm backward": {Fate{Stayed: 840}, Temporary},
		"embedding backward":  {Fate{Live: 1}, Gradient},
		"optimizer state":     {Fate{Live: 147}, OptimizerState},
		"optimizer sqrt":      {Fate{Stayed: 734, Live: 1}, OptimizerTemporary},
	} {
		u := UseOf(all[name])
		if got := u.Category(c.fate); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestCategoryByFate(t *testing.T) {
	all := real(t)
	use := func(name string) *Use {
		u := UseOf(all[name])
		return &u
	}
	other := func(name, at string) *Use { // made in the same call, at another place
		stack := append([]*snapshot.Location{{Address: 1, Lines: []snapshot.Line{{Function: at}}}}, all[name]...)
		u := UseOf(stack)
		return &u
	}
	for name, c := range map[string]struct {
		of   string
		fate Fate
		want string
	}{
		"the output of a forward that is freed after the next operator": {"add", Fate{Stayed: 9, After: use("dropout")}, Activation},
		"freed in its operator":                                     {"reshape in linear", Fate{Stayed: 9}, Temporary},
		"freed in its operator, after another was made there":       {"reshape in linear", Fate{Stayed: 9, After: other("reshape in linear", "x")}, Temporary},
		"freed after the next call of the same line":                {"add", Fate{Stayed: 9, After: use("add")}, Activation},
		"mostly saved for the backward pass":                        {"reshape in linear", Fate{Stayed: 4, Crossed: 9}, Activation},
		"many of them are live":                                     {"reshape in linear", Fate{Stayed: 4, Live: 9}, Activation},
		"accumulated over 16 steps":                                 {"weight gradient", Fate{Stayed: 1500, Crossed: 100, Live: 37}, Gradient},
		"accumulated, none of it freed on the program's thread yet": {"weight gradient", Fate{Stayed: 30, Live: 37}, Gradient},
		"a few crossed":                                             {"layer norm backward", Fate{Stayed: 5000, Crossed: 1}, Temporary},
		"one of them is live":                                       {"layer norm backward", Fate{Stayed: 500, Live: 1}, Temporary},
		"kept by an optimizer":                                      {"optimizer sqrt", Fate{Live: 40, Stayed: 3}, OptimizerState},
		"a workspace that was freed":                                {"workspace", Fate{Crossed: 2, Stayed: 1}, Workspace},
		"state of optimizers that ended":                            {"optimizer state", Fate{Stayed: 90, Live: 1}, OptimizerState},
		"a loss":                                                    {"log_softmax", Fate{Stayed: 9, After: use("ones_like")}, Temporary},
		"kept so far":                                               {"log_softmax", Fate{Live: 1}, Result},
	} {
		if got := use(c.of).Category(c.fate); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestCategoryOfOther(t *testing.T) {
	const (
		impl  = "Module._call_impl " + torch + "nn/modules/module.py"
		to    = "at::_ops::to_dtype_layout::call" + cpu
		float = "at::_ops::to_dtype::call" + cpu
		mm    = "at::_ops::mm::call" + cpu
		empty = "at::_ops::empty_memory_format::call" + cpu
		step  = "Optimizer.profile_hook_step.<locals>.wrapper " + torch + "optim/optimizer.py"
		main  = "main # /home/me/train.py"
	)
	freed, crossed, live := Fate{Stayed: 9, After: &Use{}}, Fate{Crossed: 9}, Fate{Live: 9}
	for name, c := range map[string]struct {
		stack []string
		fate  Fate
		want  string
	}{
		"a batch":                      {[]string{to, main}, freed, Input},
		"a conversion outside":         {[]string{float, main}, crossed, Activation},
		"a conversion in a module":     {[]string{float, "Net.forward # net.py", impl, main}, crossed, Activation},
		"made by a module":             {[]string{empty, "Net.forward # net.py", impl, main}, live, Activation},
		"a weight":                     {[]string{empty, "Linear.__init__ " + torch + "nn/modules/linear.py", "Net.__init__ # net.py", main}, live, Parameter},
		"a weight's numbers":           {[]string{"at::_ops::uniform_::call" + cpu, "kaiming_uniform_ " + torch + "nn/init.py", main}, freed, Parameter},
		"a pretrained model":           {[]string{to, "load # loading.py", "PreTrainedModel.from_pretrained # modeling.py", main}, live, Parameter},
		"Python before 3.11":           {[]string{to, "convert " + torch + "nn/modules/module.py", "_apply " + torch + "nn/modules/module.py", main}, live, Parameter},
		"another _apply":               {[]string{mm, "_apply # mine.py", main}, crossed, Activation},
		"another's optimizer":          {[]string{mm, "Lion.update # lion.py", "Lion.step # lion.py", step, main}, freed, OptimizerTemporary},
		"another's optimizer's state":  {[]string{empty, "Adam8bit.init_state # bnb.py", "Adam8bit.step # bnb.py", step, main}, Fate{Stayed: 90, Live: 3, After: &Use{}}, OptimizerState},
		"loaded state":                 {[]string{to, "Optimizer._process_value_according_to_param_policy " + torch + "optim/optimizer.py", "Optimizer.load_state_dict " + torch + "optim/optimizer.py", main}, live, OptimizerState},
		"a module in a closure":        {[]string{mm, "Net.forward # net.py", impl, "Closure.closure # closure.py", "Adam.step " + torch + "optim/adam.py", step, main}, crossed, Activation},
		"a loss in a closure":          {[]string{mm, "Net.loss # net.py", "Closure.closure # closure.py", "Adam.step " + torch + "optim/adam.py", step, main}, crossed, Activation},
		"a batch under a scheduler":    {[]string{to, "LRScheduler.step " + torch + "optim/lr_scheduler.py", main}, live, Input},
		"clipped":                      {[]string{mm, "clip_grad_norm_ " + torch + "nn/utils/clip_grad.py", main}, crossed, Temporary},
		"unscaled":                     {[]string{mm, "GradScaler._unscale_grads_ " + torch + "amp/grad_scaler.py", main}, live, Temporary},
		"unscaled before 2.3":          {[]string{mm, "GradScaler._unscale_grads_ " + torch + "cuda/amp/grad_scaler.py", main}, live, Temporary},
		"a copied parameter":           {[]string{"at::_ops::clone::call" + cpu, "Parameter.__deepcopy__ " + torch + "nn/parameter.py", main}, live, Parameter},
		"an average of models":         {[]string{mm, "AveragedModel.update_parameters " + torch + "optim/swa_utils.py", main}, crossed, Activation},
		"a copied gradient":            {[]string{"at::_ops::clone::call" + cpu, "torch::autograd::AccumulateGrad::apply" + cpu, run, eval}, Fate{Stayed: 9}, Gradient},
		"a bucket":                     {[]string{empty, "c10d::Reducer::initialize_buckets" + cpu, "DistributedDataParallel.__init__ " + torch + "nn/parallel/distributed.py", main}, live, Bucket},
		"a checkpoint runs again":      {[]string{mm, "Net.forward # net.py", impl, "unpack_hook " + torch + "utils/checkpoint.py", eval}, freed, Activation},
		"a checkpoint of a function":   {[]string{mm, "block # net.py", "CheckpointFunction.backward " + torch + "utils/checkpoint.py", eval}, freed, Activation},
		"gathered by FSDP":             {[]string{empty, "foreach_all_gather " + torch + "distributed/fsdp/_fully_shard/_fsdp_collectives.py", "Net.forward # net.py", impl, main}, freed, Parameter},
		"reduced by FSDP":              {[]string{empty, "foreach_reduce " + torch + "distributed/fsdp/_fully_shard/_fsdp_collectives.py", eval}, freed, Gradient},
		"generated code":               {[]string{"_empty_strided_cuda @ /x.so", "call # /tmp/torchinductor_me/c.py", "Net.forward # net.py", impl, main}, freed, Activation},
		"generated code, backward":     {[]string{"_empty_strided_cuda @ /x.so", "call # /tmp/torchinductor_me/c.py", eval}, freed, Temporary},
		"inference, freed soon":        {[]string{mm, "Net.forward # net.py", impl, main}, Fate{Stayed: 9}, Temporary},
		"inference":                    {[]string{mm, "Net.forward # net.py", impl, main}, freed, Activation},
		"numbers of no model":          {[]string{mm, main}, freed, Temporary},
		"numbers that are kept":        {[]string{mm, main}, live, Result},
		"an autograd function":         {[]string{mm, "Split.forward # net.py", "Function.apply " + torch + "autograd/function.py", main}, live, Activation},
		"its backward":                 {[]string{mm, "Split.backward # net.py", "BackwardCFunction.apply " + torch + "autograd/function.py", eval}, freed, Temporary},
		"a checkpoint on the GPU":      {[]string{"_StorageBase.to " + torch + "storage.py", "_deserialize " + torch + "serialization.py", "load " + torch + "serialization.py", main}, live, Loaded},
		"loaded into a model":          {[]string{to, "Module._load_from_state_dict " + torch + "nn/modules/module.py", main}, live, Parameter},
		"a workspace of cuDNN":         {[]string{"at::native::(anonymous namespace)::run_conv_plan" + cpu, "at::_ops::convolution::call" + cpu, "Net.forward # net.py", impl, main}, freed, ConvWorkspace},
		"a result of cuDNN":            {[]string{empty, "at::native::cudnn_convolution" + cpu, "at::_ops::convolution::call" + cpu, "Net.forward # net.py", impl, main}, crossed, Activation},
		"no operator":                  {[]string{"cudaMallocLike @ /x.so", main}, freed, Unknown},
		"no stack":                     {nil, live, Unknown},
		"a name that is a file's only": {[]string{mm, "step # /torch/optimizers.py", main}, freed, Temporary},
	} {
		u := UseOf(frames(c.stack...))
		if got := u.Category(c.fate); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// What generated code makes and frees on the lines of one function ends within it.
func TestWithinGeneratedCode(t *testing.T) {
	rest := frames("Net.forward # net.py", "Module._call_impl "+torch+"nn/modules/module.py", "main # net.py")
	at := func(line int) *Use {
		l := &snapshot.Location{Lines: []snapshot.Line{{Function: "call", File: "/tmp/torchinductor_me/c.py", Line: line}}}
		u := UseOf(append([]*snapshot.Location{l}, rest...))
		return &u
	}
	if got := at(7).Category(Fate{Stayed: 5, After: at(9)}); got != Temporary {
		t.Error(got)
	}
	if got := at(7).Category(Fate{Stayed: 5, After: &Use{}}); got != Activation {
		t.Error(got)
	}
}
