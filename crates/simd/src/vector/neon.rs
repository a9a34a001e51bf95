//! Arm vectors.

use std::arch::aarch64::*;

use super::Vector;
use super::unpack::unpack_by_element;

#[derive(Clone, Copy)]
pub(super) struct F32x4(float32x4_t);

unpack_by_element!(F32x4);

#[inline(always)]
fn widen(halves: uint16x4_t) -> float32x4_t {
    let wide: float32x4_t;
    // SAFETY: the instruction accesses only its registers.
    unsafe {
        std::arch::asm!("fcvtl {0:v}.4s, {1:v}.4h", out(vreg) wide, in(vreg) halves,
            options(pure, nomem, nostack, preserves_flags));
    }
    wide
}

#[inline(always)]
fn narrow(wide: float32x4_t) -> uint16x4_t {
    let halves: uint16x4_t;
    // SAFETY: the instruction accesses only its registers.
    unsafe {
        std::arch::asm!("fcvtn {0:v}.4h, {1:v}.4s", out(vreg) halves, in(vreg) wide,
            options(pure, nomem, nostack, preserves_flags));
    }
    halves
}

impl Vector for F32x4 {
    const LANES: usize = 4;
    const FUSED: bool = true;
    const TUNED: bool = true;
    type Mask = uint32x4_t;
    type Bits = uint32x4_t;

    #[inline(always)]
    fn round_to_f16(self) -> Self {
        F32x4(widen(narrow(self.0)))
    }

    memory! {
        load(source: *const f32) -> Self = F32x4(vld1q_f32(source));
        load_partial(source: *const f32, count: usize) -> Self = {
            let mut lanes = [0.0; 4];
            for (lane, to) in lanes.iter_mut().enumerate().take(count) {
                *to = *source.add(lane);
            }
            F32x4(vld1q_f32(lanes.as_ptr()))
        };
        store(self, target: *mut f32) = vst1q_f32(target, self.0);
        store_partial(self, target: *mut f32, count: usize) = {
            let mut lanes = [0.0; 4];
            vst1q_f32(lanes.as_mut_ptr(), self.0);
            for (lane, from) in lanes.iter().enumerate().take(count) {
                *target.add(lane) = *from;
            }
        };
        load_f16(source: *const u16) -> Self = F32x4(widen(vld1_u16(source)));
        store_f16(self, target: *mut u16) = vst1_u16(target, narrow(self.0));
        load_words(source: *const i16) -> Self = F32x4(vcvtq_f32_s32(vmovl_s16(vld1_s16(source))));
    }
    methods! {
        splat(value: f32) -> Self = F32x4(vdupq_n_f32(value));
        add(self, other: Self) -> Self = F32x4(vaddq_f32(self.0, other.0));
        sub(self, other: Self) -> Self = F32x4(vsubq_f32(self.0, other.0));
        mul(self, other: Self) -> Self = F32x4(vmulq_f32(self.0, other.0));
        div(self, other: Self) -> Self = F32x4(vdivq_f32(self.0, other.0));
        mul_add(self, factor: Self, addend: Self) -> Self =
            F32x4(vfmaq_f32(addend.0, self.0, factor.0));
        neg_mul_add(self, factor: Self, addend: Self) -> Self =
            F32x4(vfmsq_f32(addend.0, self.0, factor.0));
        min(self, other: Self) -> Self =
            F32x4(vbslq_f32(vcltq_f32(self.0, other.0), self.0, other.0));
        max(self, other: Self) -> Self =
            F32x4(vbslq_f32(vcgtq_f32(self.0, other.0), self.0, other.0));
        sqrt(self) -> Self = F32x4(vsqrtq_f32(self.0));
        round(self) -> Self = F32x4(vrndnq_f32(self.0));
        floor(self) -> Self = F32x4(vrndmq_f32(self.0));
        ceil(self) -> Self = F32x4(vrndpq_f32(self.0));
        trunc(self) -> Self = F32x4(vrndq_f32(self.0));
        scale(self, exponent: Self) -> Self = {
            // Scale in two steps, so that each factor is a normal number.
            let exponent = vcvtnq_s32_f32(exponent.0);
            let half = vshrq_n_s32::<1>(exponent);
            let rest = vsubq_s32(exponent, half);
            let bias = vdupq_n_s32(127);
            let power = |n| F32x4(vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(n, bias))));
            self.mul(power(half)).mul(power(rest))
        };
        less(self, other: Self) -> uint32x4_t = vcltq_f32(self.0, other.0);
        less_equal(self, other: Self) -> uint32x4_t = vcleq_f32(self.0, other.0);
        equal(self, other: Self) -> uint32x4_t = vceqq_f32(self.0, other.0);
        both(left: uint32x4_t, right: uint32x4_t) -> uint32x4_t = vandq_u32(left, right);
        either(left: uint32x4_t, right: uint32x4_t) -> uint32x4_t = vorrq_u32(left, right);
        not(mask: uint32x4_t) -> uint32x4_t = vmvnq_u32(mask);
        any(mask: uint32x4_t) -> bool = vmaxvq_u32(mask) != 0;
        select(mask: uint32x4_t, yes: Self, no: Self) -> Self = F32x4(vbslq_f32(mask, yes.0, no.0));
        to_bits(self) -> uint32x4_t = vreinterpretq_u32_f32(self.0);
        from_bits(bits: uint32x4_t) -> Self = F32x4(vreinterpretq_f32_u32(bits));
        to_int(self) -> uint32x4_t = vreinterpretq_u32_s32(vcvtnq_s32_f32(self.0));
        from_int(bits: uint32x4_t) -> Self = F32x4(vcvtq_f32_s32(vreinterpretq_s32_u32(bits)));
        bits(value: u32) -> uint32x4_t = vdupq_n_u32(value);
        bits_add(left: uint32x4_t, right: uint32x4_t) -> uint32x4_t = vaddq_u32(left, right);
        bits_sub(left: uint32x4_t, right: uint32x4_t) -> uint32x4_t = vsubq_u32(left, right);
        bits_and(left: uint32x4_t, right: uint32x4_t) -> uint32x4_t = vandq_u32(left, right);
        bits_or(left: uint32x4_t, right: uint32x4_t) -> uint32x4_t = vorrq_u32(left, right);
        bits_xor(left: uint32x4_t, right: uint32x4_t) -> uint32x4_t = veorq_u32(left, right);
        bits_left<const N>(bits: uint32x4_t) -> uint32x4_t =
            vshlq_u32(bits, vdupq_n_s32(N as i32));
        bits_right_signed<const N>(bits: uint32x4_t) -> uint32x4_t =
            vreinterpretq_u32_s32(vshlq_s32(vreinterpretq_s32_u32(bits), vdupq_n_s32(-(N as i32))));
        bits_equal(left: uint32x4_t, right: uint32x4_t) -> uint32x4_t = vceqq_u32(left, right);
        interleave(self, other: Self) -> (Self, Self) =
            (F32x4(vzip1q_f32(self.0, other.0)), F32x4(vzip2q_f32(self.0, other.0)));
        sum(self) -> f32 = vaddvq_f32(self.0);
        maximum(self) -> f32 = vmaxvq_f32(self.0);
    }
}
