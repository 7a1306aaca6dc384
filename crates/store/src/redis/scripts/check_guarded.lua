-- Counts every check, unless one of them would be over its limit: then only those that would be, and the others read.
-- Refunds are always counted. ARGV has an argument for each key, and then a byte for each: 0 alone, 3 alone with a key
-- that may expire earlier, 1 the first of a group and 2 the next; a group is counted only if none of its checks is over.
-- Returns each key's state and its result: 0 counted, 1 read, 2 rejected; and the time.
local NO_NUMBER = { err = 'ERR value is not an integer or out of range' }
-- Above 2^62, which is over every limit, a double may exceed the integers of Redis.
local MOST = 4611686018427387904
local members = ARGV[#KEYS + 1]

-- Each returns a key's state and whether all was admitted, and stores the new state unless it is a trial.
local checks = {}

function checks.c(key, argument, is_trial, member)
  local seconds, limit, hits = unpacked('<xI4I8xxxxxxxxxxxxxxxxi8', argument)
  local text = call('GET', key)
  if text and not string.find(text, '^-?%d+$') then
    return NO_NUMBER
  end
  local count = tonumber(text or '0')
  local after = math.max(count + hits, 0)
  if after == count or is_trial then
    return math.min(is_trial == 'read' and count or after, MOST), after <= limit
  elseif not text then
    call('SET', key, string.format('%.0f', after), 'EX', seconds)
  else
    -- A counter that would overflow returns an error and is not changed.
    local counted = redis.pcall('INCRBY', key, string.format('%.0f', after - count))
    after = type(counted) == 'number' and counted or after
    if member == '3' and call('TTL', key) < seconds then
      call('EXPIRE', key, seconds)
    end
  end
  return math.min(after, MOST), after <= limit
end

function checks.l(key, argument, is_trial)
  local of_log = log_limit(argument)
  if is_trial == 'read' then
    of_log.runs = { 0, 1 }
  end
  return count_log(key, of_log, is_trial)
end

for letter, algorithm in pairs(algorithms) do
  checks[letter] = function(key, argument, is_trial)
    local old = call('GET', key)
    local new, seconds, admitted = algorithm(argument)(old)
    if new == false then
      return FOREIGN
    elseif new and not is_trial then
      keep(key, old, new, seconds)
    end
    return old, admitted
  end
end

local function check(i, is_trial)
  return checks[ARGV[i]:sub(1, 1)](KEYS[i], ARGV[i], is_trial, members:sub(i, i))
end

local over, any_over = {}, false
for i = 1, #KEYS do
  local state, admitted = check(i, 'trial')
  if type(state) == 'table' and state.err then
    return state
  end
  over[i] = not admitted
  any_over = any_over or over[i]
end
local all, first = {}, 1
while first <= #KEYS do
  local last, is_group, is_rejected = first, members:sub(first, first) == '1', any_over
  while members:sub(last + 1, last + 1) == '2' do
    last = last + 1
  end
  if is_group and not any_over then
    -- A key may occur twice: it is tried again.
    for i = first, last do
      local _, admitted = check(i, 'trial')
      over[i] = not admitted
      is_rejected = is_rejected or over[i]
    end
  end
  for i = first, last do
    local takes = unpacked('<i8', ARGV[i], #ARGV[i] - 11) >= 0
    local result = is_rejected and takes and (is_group and over[i] and 2 or not over[i] and 1) or 0
    -- Other algorithms do not count rejected hits, and return when they would be admitted.
    local reads = result == 1 or result == 2 and ARGV[i]:sub(1, 1) == 'c'
    all[2 * i - 1], all[2 * i] = (check(i, reads and 'read')), result
  end
  first = last + 1
end
all[#all + 1], all[#all + 2] = now[1], now[2]
return all
