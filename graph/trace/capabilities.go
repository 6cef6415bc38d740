package trace

import "github.com/gomlx/compute"

// capabilities is what the recorder takes. Complex numbers, FFT, collectives, the gradients of batch normalization and of pooling, and
// gomlx's fused operations are left out.
var capabilities = compute.Capabilities{
	Functions:  true,
	DTypes:     recordedDTypes,
	Operations: operations(),
}

func operations() map[compute.OpType]bool {
	ops := map[compute.OpType]bool{}
	for _, op := range []compute.OpType{
		compute.OpTypeParameter, compute.OpTypeConstant, compute.OpTypeIota, compute.OpTypeIdentity,

		compute.OpTypeAbs, compute.OpTypeBitCount, compute.OpTypeBitwiseNot, compute.OpTypeCeil, compute.OpTypeClz, compute.OpTypeCos,
		compute.OpTypeErf, compute.OpTypeExp, compute.OpTypeExpm1, compute.OpTypeFloor, compute.OpTypeIsFinite, compute.OpTypeIsNaN,
		compute.OpTypeLog, compute.OpTypeLog1p, compute.OpTypeLogicalNot, compute.OpTypeLogistic, compute.OpTypeNeg,
		compute.OpTypeRound, compute.OpTypeRsqrt, compute.OpTypeSign, compute.OpTypeSin, compute.OpTypeSqrt, compute.OpTypeTanh,
		compute.OpTypeConvertDType, compute.OpTypeBitcast,

		compute.OpTypeAdd, compute.OpTypeAtan2, compute.OpTypeBitwiseAnd, compute.OpTypeBitwiseOr, compute.OpTypeBitwiseXor,
		compute.OpTypeDiv, compute.OpTypeLogicalAnd, compute.OpTypeLogicalOr, compute.OpTypeLogicalXor, compute.OpTypeMax,
		compute.OpTypeMin, compute.OpTypeMul, compute.OpTypePow, compute.OpTypeRem, compute.OpTypeShiftLeft,
		compute.OpTypeShiftRightArithmetic, compute.OpTypeShiftRightLogical, compute.OpTypeSub,

		compute.OpTypeEqual, compute.OpTypeEqualTotalOrder, compute.OpTypeGreaterOrEqual, compute.OpTypeGreaterOrEqualTotalOrder,
		compute.OpTypeGreaterThan, compute.OpTypeGreaterThanTotalOrder, compute.OpTypeLessOrEqual, compute.OpTypeLessOrEqualTotalOrder,
		compute.OpTypeLessThan, compute.OpTypeLessThanTotalOrder, compute.OpTypeNotEqual, compute.OpTypeNotEqualTotalOrder,

		compute.OpTypeWhere, compute.OpTypeClamp,

		compute.OpTypeBroadcastInDim, compute.OpTypeConcatenate, compute.OpTypeDynamicSlice, compute.OpTypeDynamicUpdateSlice,
		compute.OpTypeGather, compute.OpTypePad, compute.OpTypeReshape, compute.OpTypeReverse, compute.OpTypeScatterMax,
		compute.OpTypeScatterMin, compute.OpTypeScatterSum, compute.OpTypeSlice, compute.OpTypeTranspose,

		compute.OpTypeArgMinMax, compute.OpTypeBatchNormForInference, compute.OpTypeConvGeneral, compute.OpTypeDot,
		compute.OpTypeDotGeneral, compute.OpTypeReduceBitwiseAnd, compute.OpTypeReduceBitwiseOr, compute.OpTypeReduceBitwiseXor,
		compute.OpTypeReduceLogicalAnd, compute.OpTypeReduceLogicalOr, compute.OpTypeReduceLogicalXor, compute.OpTypeReduceMax,
		compute.OpTypeReduceMin, compute.OpTypeReduceProduct, compute.OpTypeReduceSum, compute.OpTypeReduceWindow,

		compute.OpTypeRNGBitGenerator, compute.OpTypeOptimizationBarrier, compute.OpTypeSchedulingBarrier,
		compute.OpTypeCall, compute.OpTypeIf, compute.OpTypeSort, compute.OpTypeWhile,
	} {
		ops[op] = true
	}
	return ops
}
