package stacks

import "strings"

// operatorName returns the name of an operator as its schema has it, without the
// overload, out of the one that PyTorch's code generator makes of both: add_Tensor is
// add, and so is add_out. A name with an overload that is not known stays whole.
func operatorName(generated string) string {
	name := generated
	for i := len(generated); i > 0; i-- {
		switch base := generated[:i]; {
		case i < len(generated) && (generated[i] != '_' || !overloads[generated[i+1:]]):
		case whole[base]:
			return base
		default:
			name = base
		}
	}
	return name
}

// overloads are the names of overloads in PyTorch's native_functions.yaml, and whole
// the operators whose own name ends like one of them.
var (
	overloads = words(`
	Dimname DimnameList DimnameList_out Dimname_Scalar Dimname_Tensor Dimname_out IntList IntList_out
	KN L List OutScalar_Other OutScalar_Self OutTensor Q Scalar ScalarList ScalarOpt_dim
	ScalarOpt_dim_dtype ScalarOpt_dtype ScalarOther ScalarSelf Scalar_Other Scalar_Scalar Scalar_Self
	Scalar_Tensor Scalar_Tensor_out Scalar_mode Scalar_out Sequence Tensor TensorList_bins
	Tensor_Scalar Tensor_Scalar_out Tensor_Tensor Tensor_Tensor_out Tensor_float Tensor_float_out
	Tensor_mode Tensor_out U X a all_out array atol_rtol_float atol_rtol_float_out atol_rtol_tensor
	atol_rtol_tensor_out b beta bin_ct bin_ct_out bins_tensor bins_tensor_out ccol_row_value
	ccol_row_value_size center comp_plain_value comp_plain_value_size correction correction_names
	correction_names_out correction_out crow_col_value crow_col_value_size data decimals decimals_out
	deprecated device dim dim_Dimname dim_DimnameList dim_IntList dim_dtype dim_int dim_max dim_min
	dim_out dim_values dimname dimname_out dimname_src dimname_stable dimname_value dimname_values
	dimname_values_stable dims dtype dtype_layout dtype_out dx e eigenvalues eigvals ellipsis_idx float
	float_Tensor float_Tensor_out float_float float_float_out from fullcoverage generator generator_out
	generator_with_names grad_input indexing indices indices_size input int int_Scalar int_Tensor
	int_bins int_out intlist inverse low low_dtype low_generator low_generator_out low_out m m_out
	memory_format n_scalar n_scalar_out named_out_dim names names_ScalarOpt_dim
	names_ScalarOpt_dim_dtype names_dim names_dim_max names_dim_min names_dim_values names_dtype_out
	names_out ntonly ord_str ord_str_out other other_scalar other_scalar_out out out_ out_mode
	out_rcond_tensor out_tol_tensor output output_mask p p_str p_str_out padding padding_idx periodic
	periodic_alpha periodic_alpha_beta rcond_tensor reduce reduce_out result scalar scalar_out
	scalararray scalarint scalarrayarray scalarrayint sections self self_Tensor self_int self_out
	self_scalar self_scalar_out sign size sizes source_Storage source_Storage_storage_offset
	source_Tensor source_Tensor_storage_offset sparse_dim src src_out stable start start_out start_step
	step str_ord str_ord_out tensor_indices_or_sections tensor_lr tensor_qparams tensorarray
	tensorarrayint tensors to tol_tensor two two_out using_ints using_names value value_out
	value_reduce value_reduce_out values values_stable vec x x_scalar x_scalar_out
`)
	whole = words(`
	_add_batch_dim _copy_from _cufft_get_plan_cache_max_size _cufft_get_plan_cache_size
	_cufft_set_plan_cache_max_size _fake_quantize_per_tensor_affine_cachemask_tensor_qparams
	_histogramdd_from_bin_tensors _log_softmax_backward_data _nested_tensor_size _remove_batch_dim
	_softmax_backward_data _sparse_broadcast_to _sparse_coo_tensor_with_dims
	_sparse_coo_tensor_with_dims_and_tensors
	_sparse_log_softmax_backward_data _sparse_softmax_backward_data _test_optional_filled_intlist
	_test_optional_intlist _validate_compressed_sparse_indices affine_grid_generator align_tensors
	align_to batch_norm_backward_reduce broadcast_tensors broadcast_to ccol_indices cholesky_inverse
	col_indices crow_indices cudnn_affine_grid_generator dense_dim flatten_dense_tensors index_reduce
	is_same_size is_set_to linalg_eigvals max_pool1d_with_indices max_pool2d_with_indices
	max_pool3d_with_indices mkldnn_linear_backward_input norm_except_dim refine_names row_indices
	segment_reduce set_data slice_inverse sparse_dim special_legendre_polynomial_p split_with_sizes
	sum_to_size take_along_dim tril_indices triu_indices unflatten_dense_tensors unique_dim
	unsafe_split_with_sizes
`)
)

func words(list string) map[string]bool {
	out := make(map[string]bool)
	for word := range strings.FieldsSeq(list) {
		out[word] = true
	}
	return out
}
