/* Less common activations y = f(x) and their gradients dx = f(dy, x), one line each; the common ones are in elementwise.h. */
#ifndef ORTRAIN_ACTIVATION_H
#define ORTRAIN_ACTIVATION_H
#include "elementwise/loops.h"

#define CLAMP01(v) SELECT((v) < 0, X_CONST(0), SELECT((v) > 1, X_CONST(1), v))
/* tanh(softplus(x)) = e (e + 2) / (e (e + 2) + 2) with e = exp(x), without tanh and log; 1 above 20 */
#define MISH(R, E)                                                    \
ALWAYS_INLINE R tanh_softplus_##R(R x)                                \
{ R e = E(x > 20 ? (R)20 : x), n = e * (e + 2); return n / (n + 2); } \
ALWAYS_INLINE R mish_derivative_##R(R x)                              \
{ R t = tanh_softplus_##R(x), s = (R)1 / ((R)1 + E(-(x < -20 ? (R)-20 : x))); return t + x * ((R)1 - t * t) * s; }
MISH(float, ot_expf)
MISH(double, exp)
#define TANH_SOFTPLUS(x) F(tanh_softplus_float, tanh_softplus_double, x)
#define MISH_DERIVATIVE(x) F(mish_derivative_float, mish_derivative_double, x)

UNARY_REAL(ot_elu, SELECT(x < 0, X_CONST(p[0]) * EXPM1(x), x))
BINARY_REAL(ot_elu_grad, SELECT(b < 0, a * R_CONST(p[0]) * EXP(b), a))
UNARY_REAL(ot_celu, SELECT(x < 0, X_CONST(p[0]) * EXPM1(x / X_CONST(p[0])), x))
BINARY_REAL(ot_celu_grad, SELECT(b < 0, a * EXP(b / R_CONST(p[0])), a))
UNARY_REAL(ot_selu, SELECT(x > 0, X_CONST(p[1]) * x, X_CONST(p[1] * p[0]) * EXPM1(x)))
BINARY_REAL(ot_selu_grad, a * R_CONST(p[1]) * SELECT(b > 0, R_CONST(1), R_CONST(p[0]) * EXP(b)))
UNARY_REAL(ot_softplus, SELECT(x > 0, x, X_CONST(0)) + LOG1P_OF_FRACTION(EXP_OF_NEGATIVE(-FABS(x))))
BINARY_REAL(ot_softplus_grad, a * SIGMOID(b))
UNARY_REAL(ot_softsign, x / (X_CONST(1) + FABS(x)))
BINARY_REAL(ot_softsign_grad, a / ((R_CONST(1) + FABS(b)) * (R_CONST(1) + FABS(b))))
UNARY_REAL(ot_mish, x * TANH_SOFTPLUS(x))
BINARY_REAL(ot_mish_grad, a * MISH_DERIVATIVE(b))
UNARY_REAL(ot_hard_sigmoid, CLAMP01(X_CONST(p[0]) * x + X_CONST(p[1])))
BINARY_REAL(ot_hard_sigmoid_grad, SELECT((R_CONST(p[0]) * b + R_CONST(p[1]) > 0) & (R_CONST(p[0]) * b + R_CONST(p[1]) < 1), a * R_CONST(p[0]), R_CONST(0)))
UNARY_REAL(ot_hard_swish, x * CLAMP01(x / X_CONST(6) + X_CONST(0.5)))
BINARY_REAL(ot_hard_swish_grad, SELECT(b <= -3, R_CONST(0), SELECT(b >= 3, a, a * (b / R_CONST(3) + R_CONST(0.5)))))
UNARY_REAL(ot_thresholded_relu, SELECT(x > X_CONST(p[0]), x, X_CONST(0)))
BINARY_REAL(ot_thresholded_relu_grad, SELECT(b > R_CONST(p[0]), a, R_CONST(0)))
UNARY_REAL(ot_shrink, SELECT(x < -X_CONST(p[0]), x + X_CONST(p[1]), SELECT(x > X_CONST(p[0]), x - X_CONST(p[1]), X_CONST(0))))
BINARY_REAL(ot_shrink_grad, SELECT(FABS(b) > R_CONST(p[0]), a, R_CONST(0)))
/* PRelu y = x < 0 ? slope * x : x; dx of (dy, x, slope); and the gradient of the slope before it is summed, of (dy, x) */
BINARY_REAL(ot_prelu, SELECT(a < 0, a * b, a))
TERNARY_REAL(ot_prelu_grad, SELECT(b < 0, a * c, a))
BINARY_REAL(ot_prelu_slope_grad, SELECT(b < 0, a * b, R_CONST(0)))
#endif
